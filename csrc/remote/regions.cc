#include "remote/regions.h"

#include <thread>
#include <utility>

#include "base/error.h"
#include "base/interruption.h"
#include "base/log.h"
#include "base/nonce.h"
#include "base/order.h"
#include "remote/pool.h"

namespace ringcoll::remote {
namespace {

// How long an agent that ends waits for writers.
constexpr Duration kClosing = std::chrono::seconds(2);
constexpr Duration kLookForWriters = std::chrono::microseconds(200);

uint64_t make_secret() {
  uint64_t secret = 0;
  while (secret == 0) secret = random_nonce();
  return secret;
}

}  // namespace

void check_range(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  check(offset <= region_bytes && bytes <= region_bytes - offset, Code::kInvalidArgument,
        "bytes {} to {} are not in the region, which has {} bytes", offset, offset + bytes,
        region_bytes);
}

void check_writable(bool may) {
  check(may, Code::kRefused,
        "the region is not writable: its owner registers it with writable=True to allow writes");
}

void throw_gone() {
  throw Error(Code::kGone,
              "the region is not there any more: its owner has closed it, or another process is "
              "where the owner was. Ask the owner for a new handle");
}

void Region::give_notice(uint64_t value) {
  {
    std::lock_guard lock(mutex_);
    gather();  // what its writer has left before
    notices_.push_back(value);
  }
  ring(**control_);
}

// With the lock. Moves the notices that were left in slots here.
void Region::gather() {
  std::lock_guard lock(control_->mutex);
  while (auto left = take_left_notice(**control_, secret_)) notices_.push_back(*left);
}

std::optional<uint64_t> Region::try_take_notice() {
  std::lock_guard lock(mutex_);
  if (notices_.empty()) gather();
  if (notices_.empty() && closed_) throw_gone();
  if (notices_.empty()) return {};
  uint64_t value = notices_.front();
  notices_.pop_front();
  return value;
}

uint64_t Region::take_notice(Deadline deadline) {
  Listening listening(**control_);
  for (;;) {
    if (auto value = try_take_notice()) return *value;
    check(!deadline.passed(), Code::kTimeout, "waiting for a notice: none has come");
    check(!Interruption::has_ended(), Code::kAborted, "waiting for a notice: interrupted");
    listening.wait(Interruption::longest_sleep(deadline.left()));
    Interruption::look();
  }
}

bool Region::is_closed() {
  std::lock_guard lock(mutex_);
  return closed_;
}

void RegionUse::reset() {
  if (!region_) return;
  {
    std::lock_guard lock(region_->mutex_);
    region_->uses_--;
  }
  region_->changed_.notify_all();
  region_.reset();
}

Regions::Regions(uint64_t agent) {
  control().self.store(reinterpret_cast<uint64_t>(&control()), std::memory_order_relaxed);
  publish(control().agent, agent);
}

Regions::~Regions() {
  for (const auto& region : std::vector(open_))
    if (region) try {
        close(region, Deadline(kClosing));
      } catch (const Error& error) {
        log_warning("an agent ends: {}. What it writes may arrive later", error.what());
      }
  publish(control().agent, uint64_t{0});  // peers that have mapped this give it up
}

std::shared_ptr<Region> Regions::open(void* data, uint64_t bytes, bool writable) {
  check(data != nullptr && bytes > 0, Code::kInvalidArgument,
        "a region of {} bytes at {}: there is nothing to read", bytes,
        data ? "an address" : "NULL");
  auto region = std::make_shared<Region>();
  region->control_ = control_;
  region->secret_ = make_secret();
  region->data_ = static_cast<std::byte*>(data);
  region->bytes_ = bytes;
  region->writable_ = writable;
  auto place = Pool::of_process().place_of(data, bytes);

  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    check(open_.size() < kMostRegions, Code::kTransport,
          "{} regions are open, which is the most: close some, or register one large region in "
          "place of many small ones",
          kMostRegions);
    free_.push_back(static_cast<uint32_t>(open_.size()));
    open_.emplace_back();
  }
  region->index_ = free_.back();
  RegionEntry& entry = control().regions[region->index_];
  constexpr auto kRelaxed = std::memory_order_relaxed;  // the secret is published last
  entry.address.store(reinterpret_cast<uint64_t>(data), kRelaxed);
  entry.bytes.store(bytes, kRelaxed);
  entry.writable.store(writable, kRelaxed);
  entry.segment_fd.store(place ? place->fd : -1, kRelaxed);
  entry.segment_inode.store(place ? place->inode : 0, kRelaxed);
  entry.segment_bytes.store(place ? place->segment_bytes : 0, kRelaxed);
  entry.segment_offset.store(place ? place->offset : 0, kRelaxed);
  publish(entry.secret, region->secret_);
  open_[region->index_] = region;
  free_.pop_back();
  return region;
}

void Regions::refuse(const std::shared_ptr<Region>& region) {
  {
    std::lock_guard lock(mutex_);
    if (open_[region->index_] != region) return;  // closed before
    control().regions[region->index_].secret.store(0, std::memory_order_seq_cst);
  }
  {
    std::lock_guard lock(region->mutex_);
    region->closed_ = true;
  }
  remote::ring(control());
}

void Regions::close(const std::shared_ptr<Region>& region, Deadline deadline) {
  refuse(region);
  {
    std::unique_lock lock(region->mutex_);
    auto unused = [&] { return region->uses_ == 0; };
    check(region->changed_.wait_for(lock, deadline.left(), unused), Code::kTimeout,
          "closing a region: a peer reads or writes it over the network and is slow");
  }
  auto is_written = [&] {
    std::lock_guard lock(control_->mutex);
    return has_writers(control(), region->index_);
  };
  while (is_written()) {
    check(!deadline.passed(), Code::kTimeout,
          "closing a region: another process of this host is in the middle of a write to it, and "
          "does not go on; it may be stopped");
    std::this_thread::sleep_for(kLookForWriters);
  }
  // Notices that were left before can still be taken, but must not keep slots.
  {
    std::lock_guard lock(region->mutex_);
    region->gather();
  }
  std::lock_guard lock(mutex_);
  if (open_[region->index_] != region) return;
  open_[region->index_].reset();
  free_.push_back(region->index_);
}

RegionUse Regions::use(uint32_t index, uint64_t secret, uint64_t offset, uint64_t bytes,
                       bool writes) {
  std::shared_ptr<Region> region;
  {
    std::lock_guard lock(mutex_);
    if (index < open_.size()) region = open_[index];
  }
  if (!region || region->secret_ != secret) throw_gone();
  check_range(offset, bytes, region->bytes_);
  check_writable(!writes || region->writable_);
  std::lock_guard lock(region->mutex_);
  if (region->closed_) throw_gone();
  region->uses_++;
  return RegionUse(std::move(region));
}

void Regions::admit(uint64_t proof) {
  for (auto& each : control().proofs) {
    uint64_t none = 0;
    if (each.compare_exchange_strong(none, proof) || none == proof) return;
  }
}

size_t Regions::count() {
  std::lock_guard lock(mutex_);
  return open_.size() - free_.size();
}

}  // namespace ringcoll::remote
