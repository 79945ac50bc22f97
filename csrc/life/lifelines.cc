#include "life/lifelines.h"

#include "life/lifelines_state.h"

namespace ringcoll {

Lifelines::Lifelines(Rank rank, Rank size, EventLoop& loop,
                     std::function<std::string(Rank)> describe)
    : state_(std::make_shared<State>(rank, size, loop, std::move(describe))) {}

Lifelines::~Lifelines() {
  std::vector<int> watched;
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    for (Line& line : state_->lines) {
      if (!line.fd) continue;
      send_on(line, encode(header_of(Type::kGoodbye)));
      watched.push_back(line.fd.get());
    }
  }
  // Not under the lock: a callback that still runs may want it.
  for (int fd : watched) state_->loop.forget(fd);
  // A callback that has closed its line may still be about to raise an error.
  state_->loop.settle();
  for (Line& line : state_->lines) {
    if (!line.fd) continue;
    // Unread data would turn the close into a reset, which could overtake the goodbye.
    char rest[256];
    while (::recv(line.fd.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
  }
}

void Lifelines::add(Rank peer, Fd fd) {
  State& state = *state_;
  invariant(peer >= 0 && peer < state.size && peer != state.rank, "a lifeline from rank {} to {}",
            state.rank, peer);
  int number = fd.get();
  set_nonblocking(number);
  tune(number);
  watch_host(number);
  {
    std::lock_guard lock(state.mutex);
    Line& line = state.lines[peer];
    invariant(!line.fd && !line.gone, "a second lifeline from rank {} to {}", state.rank, peer);
    line.fd = std::move(fd);
    state.send(peer, encode(header_of(Type::kHello)));
    // A new lifeline first carries what was flooded before.
    for (const auto& [who, error] : state.lost) state.send(peer, encode(Type::kLost, 0, error));
    for (const std::string& message : state.flooded.messages()) state.send(peer, message);
  }
  state.loop.watch(number, [&state, peer](uint32_t) { state.on_readable(peer); });
}

void Lifelines::fail(GroupNumber group, const Error& error) { state_->fail(group, error); }

size_t Lifelines::remembered() const {
  std::lock_guard lock(state_->mutex);
  std::set<GroupNumber> ids;
  for (const Line& line : state_->lines) ids.insert(line.left.begin(), line.left.end());
  for (const auto& [id, ranks] : state_->leave_later) ids.insert(id);
  for (const auto& [id, group] : state_->groups) ids.erase(id);
  return ids.size();
}

size_t Lifelines::remembered_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->flooded.bytes();
}

bool Lifelines::has(Rank peer) const {
  std::lock_guard lock(state_->mutex);
  const Line& line = state_->lines.at(peer);
  return line.fd || line.gone;
}

std::vector<Rank> Lifelines::lost() const {
  std::lock_guard lock(state_->mutex);
  std::vector<Rank> ranks;
  for (const auto& [rank, error] : state_->lost) ranks.push_back(rank);
  return ranks;
}

}  // namespace ringcoll
