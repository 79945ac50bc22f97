#include "p2p/channels_testing.h"

#include <fmt/core.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringcoll::testing {

std::vector<Behaviour> behaviours() {
  return {{.name = "reads", .reads_peer = true},
          {.name = "staged"},
          {.name = "anywhere", .inline_bytes = 0, .staging_bytes = 0, .from_anywhere = true},
          {.name = "tiny", .inline_bytes = 0, .staging_bytes = 300, .credits = 1},
          {.name = "calm", .reads_peer = true, .one_in = 0},
          {.name = "alone", .staging_bytes = 0, .reads_peer = true},
          {.name = "lends", .reads_peer = true, .takes_lent = true},
          {.name = "slow", .credits = 1, .reads_peer = true, .one_in = 2},
          {.name = "registers", .registers = true, .one_in = 2},
          {.name = "copies", .copied_bytes = 4096, .credits = 2, .reads_peer = true}};
}

class FakeWorld::Channel final : public Endpoint, public HostLink {
 public:
  Channel(FakeWorld& world, Rank rank, Rank peer) : world_(world), rank_(rank), peer_(peer) {}

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t try_copy(const Envelope& envelope, std::span<const Slice> slices,
                    uint64_t bytes) override;
  uint64_t completed() override;
  bool try_peek(Envelope* envelope, uint64_t* bytes) override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override;
  bool busy() const override;
  bool reads_peer() const override { return world_.behaviour_.reads_peer; }
  bool takes_lent() const override { return world_.behaviour_.takes_lent; }
  void revoke() noexcept override;
  bool read_peer(uint64_t address, void* place, uint64_t bytes, uint64_t word_at,
                 uint64_t* word) override;

 private:
  Pipe& out() { return world_.pipe(rank_, peer_); }
  Pipe& in() { return world_.pipe(peer_, rank_); }
  void throw_if_broken(const Pipe& pipe) const {
    if (pipe.broken)
      throw Error(*pipe.broken, fmt::format("the link to rank {} broke", peer_), peer_);
  }

  FakeWorld& world_;
  const Rank rank_, peer_;
};

class FakeWorld::Channels final : public MessageChannels {
 public:
  Channels(FakeWorld& world, Rank rank) : world_(world), rank_(rank) {}

  Rank rank() const override { return rank_; }
  Rank size() const override { return world_.size_; }
  bool try_open(Rank peer) override;
  bool progress() override;
  const std::vector<Rank>& open() const override { return seat().open; }
  Endpoint& operator[](Rank peer) override { return *seat().endpoints.at(peer); }
  void drop(Rank peer) override { seat().dropped.at(peer) = true; }
  std::span<std::byte> staging() override { return seat().staging; }
  uint64_t inline_bytes() const override { return world_.behaviour_.inline_bytes; }
  uint64_t copies_up_to(Rank) const override { return world_.behaviour_.copied_bytes; }
  bool sends_from_anywhere(Rank) const override { return world_.behaviour_.from_anywhere; }
  uint64_t lend(Rank peer, Loan loan, uint64_t oldest) override;
  void revoke() noexcept override;
  void wait(Duration limit, uint64_t bytes) override;
  void wake() override;

 private:
  Seat& seat() const { return *world_.seats_[rank_]; }
  void add(Rank peer);

  FakeWorld& world_;
  const Rank rank_;
};

FakeWorld::FakeWorld(Rank size, Behaviour behaviour, uint64_t seed)
    : size_(size),
      behaviour_(std::move(behaviour)),
      random_(seed),
      pipes_(static_cast<size_t>(size) * size) {
  for (Rank rank = 0; rank < size; rank++) {
    auto seat = std::make_unique<Seat>();
    seat->staging.resize(behaviour_.staging_bytes);
    seat->is_open.resize(size);
    seat->opened_by_peer.resize(size);
    seat->dropped.resize(size);
    seat->channels = std::make_unique<Channels>(*this, rank);
    for (Rank peer = 0; peer < size; peer++)
      seat->endpoints.push_back(std::make_unique<Channel>(*this, rank, peer));
    seats_.push_back(std::move(seat));
  }
}

FakeWorld::~FakeWorld() = default;

MessageChannels& FakeWorld::channels(Rank rank) { return *seats_[rank]->channels; }

void FakeWorld::notify(Rank rank) {
  seats_[rank]->events++;
  seats_[rank]->changed.notify_all();
}

void FakeWorld::forget_memory_of(Rank rank) {
  std::lock_guard lock(mutex_);
  seats_[rank]->memory_gone = true;
}

void FakeWorld::break_link(Rank from, Rank to, Code code) {
  std::lock_guard lock(mutex_);
  pipe(from, to).broken = pipe(to, from).broken = code;
  notify(from);
  notify(to);
}

// A sender's memory is read when the kernel gets to it, or the receiver has said where it wants it,
// and the sender looks.
void FakeWorld::let_leave(Pipe& pipe, Rank to) {
  for (uint64_t n = pipe.released + 1; n <= pipe.sent; n++) {
    Message& message = pipe.at(n);
    if (message.left) continue;
    bool later = behaviour_.from_anywhere || (behaviour_.registers && message.bytes > 0);
    if (later && unlucky()) return;
    message.left = true;
    if (behaviour_.from_anywhere && message.bytes > 0) {
      message.copy.assign(message.data, message.data + message.bytes);
      message.data = nullptr;
    }
    notify(to);
  }
}

uint64_t FakeWorld::Channel::try_send(const Envelope& envelope, const void* data, uint64_t bytes) {
  std::lock_guard lock(world_.mutex_);
  const Behaviour& how = world_.behaviour_;
  Pipe& pipe = out();
  throw_if_broken(pipe);
  invariant(world_.seats_[rank_]->is_open[peer_], "{} sends to {} before it is open", rank_, peer_);
  if (pipe.sent - pipe.released >= how.credits || world_.unlucky()) return 0;
  const auto* from = static_cast<const std::byte*>(data);
  Message message{.envelope = envelope, .bytes = bytes};
  if (how.from_anywhere) {
    message.data = from;
  } else if (bytes <= how.inline_bytes) {
    message.copy.assign(from, from + bytes);
  } else {
    auto& staging = world_.seats_[rank_]->staging;
    bool staged = from >= staging.data() && from + bytes <= staging.data() + staging.size();
    invariant(staged || how.takes_lent || world_.is_lent(rank_, data, bytes, false),
              "{} bytes are sent from where they cannot be", bytes);
    message.data = from;
    message.borrowed = true;
    message.lent = !staged;
    world_.lent_ += message.lent;
  }
  pipe.messages.push_back(std::move(message));
  pipe.sent++;
  world_.let_leave(pipe, peer_);
  return pipe.sent;
}

uint64_t FakeWorld::Channel::try_copy(const Envelope& envelope, std::span<const Slice> slices,
                                      uint64_t bytes) {
  std::lock_guard lock(world_.mutex_);
  Pipe& pipe = out();
  throw_if_broken(pipe);
  invariant(bytes <= world_.behaviour_.copied_bytes, "{} bytes are to be copied", bytes);
  if (pipe.sent - pipe.released >= world_.behaviour_.credits || world_.unlucky()) return 0;
  Message message{.envelope = envelope, .bytes = bytes};
  for (const Slice& slice : slices)
    message.copy.insert(message.copy.end(), slice.data, slice.data + slice.bytes);
  invariant(message.copy.size() == bytes, "slices of {} bytes are not {}", message.copy.size(),
            bytes);
  pipe.messages.push_back(std::move(message));
  pipe.sent++;
  world_.let_leave(pipe, peer_);
  return pipe.sent;
}

bool FakeWorld::Channel::progress() {
  std::lock_guard lock(world_.mutex_);
  world_.let_leave(out(), peer_);
  return false;
}

bool FakeWorld::Channel::busy() const {
  std::lock_guard lock(world_.mutex_);
  const Pipe& pipe = world_.pipe(rank_, peer_);
  return std::ranges::any_of(pipe.messages, [](const Message& message) { return !message.left; });
}

void FakeWorld::Channel::revoke() noexcept {
  std::lock_guard lock(world_.mutex_);
  invariant(!world_.seats_[rank_]->waits, "rank {} gives up while another thread waits", rank_);
  Pipe& pipe = out();
  for (uint64_t n = pipe.taken + 1; n <= pipe.sent; n++) pipe.at(n).gone |= pipe.at(n).lent;
}

uint64_t FakeWorld::Channel::completed() {
  std::lock_guard lock(world_.mutex_);
  Pipe& pipe = out();
  throw_if_broken(pipe);
  world_.let_leave(pipe, peer_);
  if (world_.unlucky()) return pipe.completed;
  auto complete = [&](uint64_t n) {
    return n <= pipe.released || (pipe.at(n).left && !pipe.at(n).borrowed);
  };
  while (pipe.completed < pipe.sent && complete(pipe.completed + 1)) pipe.completed++;
  return pipe.completed;
}

bool FakeWorld::Channel::try_peek(Envelope* envelope, uint64_t* bytes) {
  std::lock_guard lock(world_.mutex_);
  Pipe& pipe = in();
  invariant(pipe.taken == pipe.released, "a look at the next message before the last was released");
  if (pipe.taken == pipe.sent || !pipe.at(pipe.taken + 1).left) {
    throw_if_broken(pipe);
    return false;
  }
  if (world_.unlucky()) return false;
  *envelope = pipe.at(pipe.taken + 1).envelope;
  *bytes = pipe.at(pipe.taken + 1).bytes;
  return true;
}

bool FakeWorld::Channel::try_recv(void* place, uint64_t capacity, View* view) {
  std::lock_guard lock(world_.mutex_);
  Pipe& pipe = in();
  if (pipe.taken == pipe.sent || !pipe.at(pipe.taken + 1).left) {
    throw_if_broken(pipe);
    return false;
  }
  Message& message = pipe.at(pipe.taken + 1);
  if (message.gone) throw Error(Code::kPeerLost, "it was taken back", peer_);
  auto* to = static_cast<std::byte*>(place);
  invariant(!pipe.offered || pipe.place == to, "another place than before");
  invariant(capacity >= message.bytes, "no room for a message that was looked at");
  const std::byte* data = message.data ? message.data : message.copy.data();
  invariant(!message.lent || !world_.behaviour_.registers ||
                world_.is_lent(peer_, message.data, message.bytes, false),
            "what is being sent is not lent any more");
  bool placed =
      to && (world_.behaviour_.from_anywhere || world_.is_lent(rank_, to, message.bytes, true));
  if (placed) std::copy_n(data, message.bytes / 2, to);
  pipe.offered = true;
  pipe.place = to;
  if (world_.unlucky()) return false;
  pipe.offered = false;
  if (placed) std::copy_n(data, message.bytes, to);
  view->data = placed ? to : data;
  view->bytes = message.bytes;
  view->envelope = message.envelope;
  pipe.taken++;
  return true;
}

void FakeWorld::Channel::release() {
  std::lock_guard lock(world_.mutex_);
  Pipe& pipe = in();
  invariant(pipe.released < pipe.taken, "release() without a view");
  pipe.messages.pop_front();
  pipe.released++;
  world_.notify(peer_);
}

bool FakeWorld::Channel::read_peer(uint64_t address, void* place, uint64_t bytes, uint64_t word_at,
                                   uint64_t* word) {
  {
    std::lock_guard lock(world_.mutex_);
    throw_if_broken(in());
    if (world_.seats_[peer_]->memory_gone) return false;
  }
  iovec local{place, bytes}, remote{reinterpret_cast<void*>(address), bytes};
  if (bytes > 0 &&
      ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    return false;  // as of memory that a driver has mapped
  if (word) *word = __atomic_load_n(reinterpret_cast<const uint64_t*>(word_at), __ATOMIC_SEQ_CST);
  return true;
}

void FakeWorld::Channels::add(Rank peer) {
  if (seat().is_open[peer]) return;
  seat().is_open[peer] = true;
  seat().open.push_back(peer);
}

bool FakeWorld::Channels::try_open(Rank peer) {
  std::lock_guard lock(world_.mutex_);
  invariant(peer != rank_, "rank {} opens a channel to itself", rank_);
  if (seat().is_open[peer]) return true;
  if (world_.pipe(rank_, peer).broken)
    throw Error(*world_.pipe(rank_, peer).broken, fmt::format("rank {} cannot be reached", peer),
                peer);
  if (world_.unlucky()) return false;
  add(peer);
  world_.seats_[peer]->opened_by_peer[rank_] = true;
  world_.notify(peer);
  return true;
}

bool FakeWorld::Channels::progress() {
  std::lock_guard lock(world_.mutex_);
  bool moved = false;
  for (Rank peer = 0; peer < world_.size_; peer++) {
    if (seat().opened_by_peer[peer] && !seat().is_open[peer]) add(peer), moved = true;
    if (seat().is_open[peer]) world_.let_leave(world_.pipe(rank_, peer), peer);
  }
  return moved;
}

uint64_t FakeWorld::Channels::lend(Rank /*peer*/, Loan loan, uint64_t oldest) {
  std::lock_guard lock(world_.mutex_);
  invariant(!seat().waits, "rank {} lends while another thread waits", rank_);
  if (!world_.behaviour_.registers) return 0;
  auto& loans = seat().loans;
  loans.erase(loans.begin(), oldest > 0 ? loans.lower_bound(oldest) : loans.end());
  uint64_t number = ++seat().last_loan;
  if (world_.unlucky()) return 0;
  loans[number] = loan;
  return number;
}

void FakeWorld::Channels::revoke() noexcept {
  std::lock_guard lock(world_.mutex_);
  seat().loans.clear();
  for (Rank peer = 0; peer < world_.size_; peer++) {
    Pipe& pipe = world_.pipe(rank_, peer);
    for (uint64_t n = pipe.taken + 1; n <= pipe.sent; n++) pipe.at(n).gone = true;
  }
}

bool FakeWorld::is_lent(Rank rank, const void* data, uint64_t bytes, bool written) const {
  const auto* first = static_cast<const std::byte*>(data);
  return std::ranges::any_of(seats_[rank]->loans, [&](const auto& each) {
    const Loan& loan = each.second;
    return loan.data <= first && first + bytes <= loan.data + loan.bytes &&
           (loan.written || !written);
  });
}

void FakeWorld::Channels::wait(Duration limit, uint64_t /*bytes*/) {
  if (world_.on_wait) world_.on_wait(rank_);
  std::unique_lock lock(world_.mutex_);
  seat().waits = true;
  world_.waits_++;
  // What was put off comes without an event.
  if (world_.behaviour_.one_in > 0) limit = std::min<Duration>(limit, std::chrono::milliseconds(1));
  seat().changed.wait_for(lock, limit,
                          [this] { return seat().woken || seat().events != seat().seen; });
  seat().seen = seat().events;
  seat().woken = false;
  seat().waits = false;
}

void FakeWorld::Channels::wake() {
  if (world_.on_wake) world_.on_wake(rank_);
  std::lock_guard lock(world_.mutex_);
  seat().woken = true;
  seat().changed.notify_all();
}

}  // namespace ringcoll::testing
