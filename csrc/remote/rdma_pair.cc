#include "remote/rdma_pair.h"

#include <algorithm>
#include <array>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/nonce.h"
#include "remote/regions.h"
#include "transport/verbs/ports.h"
#include "verbs/gid.h"

namespace ringcoll::remote {
namespace {

// Chunks that the device has at a time: enough for 100 Gb/s over a thread that is woken after 1 ms.
constexpr uint64_t kWindowBytes = 16 * kChunkBytes;
// Above the most requests of a carrier (remote/dispatcher.cc), with the proof.
constexpr uint32_t kSendRequests = 128;
constexpr uint32_t kMostReads = 16;
static_assert(kStretchBytes % kChunkBytes == 0, "no chunk lies in two stretches");

constexpr uint64_t kProofWrite = UINT64_MAX;
constexpr uint64_t kProofRead = UINT64_MAX - 1;
// A region that was not to be registered goes over the link for so long.
constexpr Duration kRefused = std::chrono::seconds(10);
// The owner of a region waits for less than this until it makes the key invalid. Soft-RoCE then
// loses reads without a word.
constexpr Duration kLeaving = std::chrono::milliseconds(400);
// A device without progress is not silent before the dispatcher's second and this, if its peer
// answers. By RINGCOLL_QP_TIMEOUT and RINGCOLL_QP_RETRIES it gives up by itself about then.
constexpr Duration kNoProgress = std::chrono::seconds(3);
// A batch that ends early waits so long for its chunks, before it destroys the queue pair.
constexpr Duration kPatience = std::chrono::milliseconds(20);

FrameHead failed(uint64_t id, const Error& error) {
  return {.kind = FrameKind::kFailed, .code = static_cast<uint16_t>(error.code()), .id = id};
}

}  // namespace

RdmaPair::RdmaPair(const Context& context, std::shared_ptr<Link> link,
                   std::shared_ptr<rdma::OpenPort> port, uint64_t number)
    : context_(context),
      link_(std::move(link)),
      port_(std::move(port)),
      number_(number),
      psn_(static_cast<uint32_t>(random_nonce() & 0xffffff)),
      scratch_(2 * kScratchBytes),
      scratch_region_(port_->domain, scratch_.data(), scratch_.size(),
                      verbs::Access::kRemoteWrite | verbs::Access::kRemoteRead),
      channel_(port_->context),
      queue_(port_->context, kSendRequests + 1, &channel_),
      pair_(port_->domain, queue_, queue_,
            {.send_requests = kSendRequests, .receive_requests = 1}) {
  agent = link_->agent;
  mine_ = make_offer();
}

RdmaPair::~RdmaPair() = default;

void RdmaPair::begin() {
  queue_.arm();
  context_.loop.watch(channel_.fd(), [self = shared_from_this()](uint32_t) { self->ready(); });
}

// --- Joining the ends.

RdmaOffer RdmaPair::make_offer() const {
  verbs::UsablePort port = port_->port();
  return {.address = rdma::address_of(port, 0, 0),
          .qp_num = pair_.number(),
          .psn = psn_,
          .reads_in_flight =
              std::min<uint32_t>(kMostReads, static_cast<uint32_t>(port.limits.reads_in_flight)),
          .scratch_rkey = scratch_region_.rkey(),
          .scratch = scratch_region_.address()};
}

verbs::Connection RdmaPair::connection() const {
  verbs::UsablePort port = port_->port();
  const Config& config = context_.config;
  verbs::Connection c;
  c.port = static_cast<uint8_t>(port.port.number);
  c.peer_may = verbs::Access::kRemoteWrite | verbs::Access::kRemoteRead;
  c.remote_qp_num = theirs_.qp_num;
  c.local_psn = psn_;
  c.remote_psn = theirs_.psn;
  c.path_mtu_bytes = std::min(mine_.address.mtu_bytes, theirs_.address.mtu_bytes);
  c.global_route = verbs::needs_global_route(port.port, port.gid.gid, theirs_.address.gid);
  c.gid_index = static_cast<uint8_t>(std::max(port.gid.index, 0));
  c.remote_gid = theirs_.address.gid;
  c.remote_lid = theirs_.address.lid;
  c.service_level = static_cast<uint8_t>(config.service_level);
  c.traffic_class = static_cast<uint8_t>(config.traffic_class);
  c.timeout_exponent = static_cast<uint8_t>(config.qp_timeout);
  c.retries = static_cast<uint8_t>(config.qp_retries);
  c.reads_in_flight =
      static_cast<uint8_t>(std::clamp(theirs_.reads_in_flight, 1u, mine_.reads_in_flight));
  return c;
}

void RdmaPair::connect(const RdmaOffer& theirs) {
  std::string why = rdma::mismatch(theirs.address, mine_.address);
  check(why.empty(), Code::kTransport, "{}", why);
  std::lock_guard lock(mutex_);
  if (ended_) return;
  theirs_ = theirs;
  verbs::Connection c = connection();
  pair_.to_init(c);
  pair_.to_ready_to_receive(c);
  pair_.to_ready_to_send(c);
}

// A read brings a full packet back, so both directions are proven by one end.
void RdmaPair::prove() {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  verbs::Slice own =
      verbs::slice_of(scratch_region_, scratch_.data() + kScratchBytes, kScratchBytes);
  proofs_left_ = 2;
  bool posted = pair_.try_write({.id = kProofWrite,
                                 .from = {&own, 1},
                                 .remote_address = theirs_.scratch,
                                 .rkey = theirs_.scratch_rkey}) &&
                pair_.try_read({.id = kProofRead,
                                .into = {&own, 1},
                                .remote_address = theirs_.scratch,
                                .rkey = theirs_.scratch_rkey});
  check(posted, Code::kTransport, "the send queue of a new queue pair is full");
}

void RdmaPair::end(const std::string& why) {
  std::map<uint64_t, Asked> requests;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    pair_.reset();  // the device has let go of all memory once this returns
    scratch_region_ = {};
    requests.swap(requests_);
    posted_ = 0;
    for (const RegionId& region : leaving_) leave_key(region);
    leaving_.clear();
  }
  requests.clear();
  context_.loop.forget(channel_.fd());
  {
    std::lock_guard lock(mutex_);
    queue_ = {};
    channel_ = {};
  }
  context_.loop.after(Duration::zero(), [self = shared_from_this(), why] {
    self->context_.listener.ended(*self, why);
  });
}

// --- Requests.

RdmaPair::RegionId RdmaPair::id_of(const Request& request) {
  return {request.source->region->index, request.source->region->secret};
}

RdmaPair::Stretch RdmaPair::stretch_of(const Request& request) {
  uint64_t first = request.offset / kStretchBytes * kStretchBytes;
  return {request.copy->local + first, std::min(kStretchBytes, request.copy->bytes - first),
          request.kind == FrameKind::kRead};
}

int RdmaPair::suits(const RegionHandle& region, bool notice) const {
  if (notice) return 0;
  std::lock_guard lock(refused_mutex_);
  auto found = refused_.find({region.index, region.secret});
  return found != refused_.end() && Clock::now() < found->second ? 0 : 2;
}

uint64_t RdmaPair::window_bytes() const { return kWindowBytes; }

// A device that has nothing to do says nothing. One that works repeats what is lost, and may be
// slow: it has more time than the peer.
Clock::time_point RdmaPair::heard() const {
  Clock::time_point progressed = progressed_.load(std::memory_order_relaxed);
  Clock::time_point latest = posted_ == 0 ? Clock::time_point::max() : progressed + kNoProgress;
  return std::max(progressed, std::min(link_->heard(), latest));
}

void RdmaPair::excuse(Duration lag) {
  std::lock_guard lock(mutex_);
  progressed_ = excused(progressed_, lag);
}

void RdmaPair::ask(const Request& request, const std::function<bool()>& wanted) {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || !wanted()) return;
    Asked& asked = requests_[request.id] = {.request = request, .lease = nullptr};
    Stretch stretch = stretch_of(request);
    asked.lease = context_.memory.find(*port_, stretch.data, stretch.bytes, stretch.written);
    if (go_on(asked)) return;
  }
  context_.listener.slowly([self = shared_from_this(), id = request.id] { self->prepare(id); });
}

// On the thread for what takes long: registers the memory of a request, and asks for its key.
void RdmaPair::prepare(uint64_t id) {
  Stretch stretch;
  RegionId region;
  std::shared_ptr<Batch> batch;  // keeps the memory's description
  {
    std::lock_guard lock(mutex_);
    auto found = requests_.find(id);
    if (found == requests_.end()) return;
    batch = found->second.request.batch;
    stretch = stretch_of(found->second.request);
    region = id_of(found->second.request);
    ask_for_key(region);
  }
  RdmaMemory::Lease lease;
  try {
    lease = context_.memory.make(port_, stretch.data, stretch.bytes, stretch.written);
  } catch (const Error& error) {
    return refuse(id, region, error);
  }
  std::lock_guard lock(mutex_);
  auto found = requests_.find(id);
  if (found == requests_.end() || found->second.posted) return;
  found->second.lease = std::move(lease);
  go_on(found->second);
}

// With the lock.
void RdmaPair::ask_for_key(const RegionId& region) {
  if (keys_.contains(region) || !asking_.insert(region).second) return;
  link_->send({.kind = FrameKind::kKeyAsk, .secret = region.second, .region = region.first});
}

// With the lock. False: something is missing still.
bool RdmaPair::go_on(Asked& asked) {
  auto key = keys_.find(id_of(asked.request));
  if (key == keys_.end() || !asked.lease) return false;
  if (auto error = objection(asked, key->second)) {
    answer_later(asked.request.id, *error);
    requests_.erase(asked.request.id);
  } else {
    post(asked, key->second);
  }
  return true;
}

// The device would refuse it too, but would break the queue pair for that.
std::optional<Error> RdmaPair::objection(const Asked& asked, const RdmaKey& key) const {
  const Request& request = asked.request;
  try {
    check_range(request.region_offset(), request.bytes, key.bytes);
    check_writable(request.kind == FrameKind::kRead || key.writable);
    return {};
  } catch (const Error& error) {
    return error;
  }
}

// With the lock. Allocates nothing but for errors.
void RdmaPair::post(Asked& asked, const RdmaKey& key) {
  const Request& request = asked.request;
  verbs::Slice slice{reinterpret_cast<uintptr_t>(request.local()),
                     static_cast<uint32_t>(request.bytes), asked.lease->lkey()};
  uint64_t remote = key.address + request.region_offset();
  std::string why = "its send queue is full";
  try {
    if (posted_ == 0) progressed_ = Clock::now();
    asked.posted = request.kind == FrameKind::kRead ? pair_.try_read({.id = request.id,
                                                                      .into = {&slice, 1},
                                                                      .remote_address = remote,
                                                                      .rkey = key.rkey})
                                                    : pair_.try_write({.id = request.id,
                                                                       .from = {&slice, 1},
                                                                       .remote_address = remote,
                                                                       .rkey = key.rkey});
  } catch (const Error& error) {
    why = error.what();
  }
  if (asked.posted)
    posted_++;
  else
    context_.loop.after(Duration::zero(), [self = shared_from_this(), why] { self->end(why); });
}

// The dispatcher finds another way for it.
void RdmaPair::refuse(uint64_t id, const RegionId& region, const Error& error) {
  log_debug("a chunk does not go by RDMA: {}", error.what());
  {
    std::lock_guard lock(mutex_);
    if (requests_.erase(id) == 0) return;
  }
  if (context_.is_only_way) return answer_later(id, error);
  {
    std::lock_guard lock(refused_mutex_);
    refused_[region] = Clock::now() + kRefused;
  }
  context_.loop.after(Duration::zero(), [self = shared_from_this(), id] {
    self->context_.dispatcher.give_back(*self, id);
  });
}

void RdmaPair::answer_later(uint64_t id, const Error& error) {
  context_.loop.after(Duration::zero(), [self = shared_from_this(), id, error] {
    self->context_.dispatcher.take(*self, failed(id, error), error.what());
  });
}

void RdmaPair::take_key(uint32_t region, uint64_t secret, const RdmaKey& key) {
  RegionId which{region, secret};
  std::lock_guard lock(mutex_);
  asking_.erase(which);
  keys_[which] = key;
  std::vector<uint64_t> waiting;
  for (auto& [id, asked] : requests_)
    if (!asked.posted && id_of(asked.request) == which) waiting.push_back(id);
  for (uint64_t id : waiting) go_on(requests_.at(id));
}

void RdmaPair::take_no_key(uint32_t region, uint64_t secret, const Error& error) {
  RegionId which{region, secret};
  std::vector<uint64_t> waiting;
  {
    std::lock_guard lock(mutex_);
    asking_.erase(which);
    for (auto& [id, asked] : requests_)
      if (!asked.posted && id_of(asked.request) == which) waiting.push_back(id);
    if (error.code() != Code::kTransport)
      for (uint64_t id : waiting) requests_.erase(id);
  }
  for (uint64_t id : waiting)
    if (error.code() == Code::kTransport)
      refuse(id, which, error);
    else
      answer_later(id, error);
}

void RdmaPair::take_key_gone(uint32_t region, uint64_t secret) {
  RegionId which{region, secret};
  std::lock_guard lock(mutex_);
  keys_.erase(which);
  if (!has_posted(which)) return leave_key(which);
  leaving_.insert(which);
  context_.loop.after(kLeaving, [self = shared_from_this(), which] {
    {
      std::lock_guard lock(self->mutex_);
      if (!self->leaving_.contains(which)) return;
    }
    self->end("a region was closed that it was copying");
  });
}

// With the lock, and so has_posted().
void RdmaPair::leave_key(const RegionId& region) {
  link_->send({.kind = FrameKind::kKeyLeft, .secret = region.second, .region = region.first});
}

bool RdmaPair::has_posted(const RegionId& region) const {
  return std::ranges::any_of(requests_, [&](const auto& each) {
    return each.second.posted && id_of(each.second.request) == region;
  });
}

// --- Completions.

void RdmaPair::ready() {
  std::vector<uint64_t> done;
  std::string failure;
  bool is_proven = false;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    try {
      channel_.drain();
      queue_.arm();
    } catch (const Error& error) {
      failure = error.what();
    }
    int proofs_before = proofs_left_;
    if (failure.empty()) failure = collect(&done);
    is_proven = proofs_before > 0 && proofs_left_ == 0;
  }
  if (is_proven && failure.empty()) context_.listener.proven(*this);
  deliver(done);
  if (!failure.empty()) end(failure);
}

// With the lock. Takes the completions that are there. Returns why the queue pair has failed, or
// "".
std::string RdmaPair::collect(std::vector<uint64_t>* done) {
  std::array<verbs::Completion, 32> some;
  try {
    while (size_t count = queue_.poll(some)) {
      progressed_.store(Clock::now(), std::memory_order_relaxed);
      for (size_t i = 0; i < count; i++) {
        const verbs::Completion& each = some[i];
        if (!each.ok()) return each.text();
        if (each.id() == kProofWrite || each.id() == kProofRead) {
          proofs_left_--;
        } else if (requests_.erase(each.id()) > 0) {
          posted_--;
          done->push_back(each.id());
        }
      }
    }
    std::erase_if(leaving_, [&](const RegionId& region) {
      return has_posted(region) ? false : (leave_key(region), true);
    });
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void RdmaPair::deliver(const std::vector<uint64_t>& done) {
  for (uint64_t id : done)
    context_.dispatcher.take(*this, {.kind = FrameKind::kDone, .id = id}, {});
}

// With the lock.
bool RdmaPair::has_posted(const void* owner) const {
  return std::ranges::any_of(requests_, [&](const auto& each) {
    return each.second.posted && each.second.request.batch.get() == owner;
  });
}

void RdmaPair::abandon(const void* owner) {
  std::vector<uint64_t> done;
  std::string failure;
  Deadline patience(kPatience);
  for (bool waits = true; waits && failure.empty();) {
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      std::erase_if(requests_, [&](const auto& each) {
        return !each.second.posted && each.second.request.batch.get() == owner;
      });
      failure = collect(&done);
      waits = has_posted(owner);
    }
    if (waits && patience.passed()) failure = "a copy was given up before its device had ended it";
    if (waits && failure.empty()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  context_.loop.after(Duration::zero(), [self = shared_from_this(), done] { self->deliver(done); });
  if (!failure.empty()) end(failure);
}

}  // namespace ringcoll::remote
