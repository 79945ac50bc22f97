#include "ringcoll_bell.h"

#include <limits>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// A peer that does not receive within the time has not failed. The next agreement finds ranks that
// have.
rc_message message_of(uint64_t* cycle, int peer, double timeout_s) {
  rc_message message{};
  message.struct_size = sizeof(message);
  message.data = cycle;
  message.bytes = sizeof(*cycle);
  message.peer = peer;
  message.timeout_s = timeout_s;
  return message;
}

// The parent of a rank is its number without the lowest set bit. So most neighbours are near: ranks
// of a host have consecutive numbers.
std::vector<int> neighbours_of(int rank, int size) {
  std::vector<int> neighbours;
  if (rank > 0) neighbours.push_back(rank & (rank - 1));
  for (int bit = 1; rank + bit < size && (rank & bit) == 0; bit <<= 1) {
    neighbours.push_back(rank + bit);
  }
  return neighbours;
}

}  // namespace

RingcollBell::RingcollBell(const RingcollLibrary& library, rc_comm* comm)
    : library_(library),
      comm_(comm),
      rank_(library.comm_rank(comm)),
      neighbours_(neighbours_of(rank_, library.comm_size(comm))) {}

RingcollBell::~RingcollBell() {
  for (Sent& sent : sent_) library_.request_free(sent.request);
}

rc_status RingcollBell::Tell(int peer, uint64_t cycle) {
  sent_.push_back({cycle, nullptr});
  Sent& sent = sent_.back();
  rc_message message = message_of(&sent.cycle, peer, kNoLimit);
  rc_status status = library_.isend(comm_, &message, &sent.request);
  if (status != RC_OK) sent_.pop_back();
  return status;
}

rc_status RingcollBell::Ring(uint64_t cycle, int except) {
  for (int peer : neighbours_) {
    if (peer == except) continue;
    rc_status status = Tell(peer, cycle);
    if (status != RC_OK) return status;
  }
  // Most sends are complete by now.
  while (!sent_.empty()) {
    int done = 0;
    rc_status status = library_.wait(sent_.front().request, 0, &done);
    if (!done) break;
    library_.request_free(sent_.front().request);
    sent_.pop_front();
    if (status != RC_OK) return status;
  }
  return RC_OK;
}

rc_status RingcollBell::RingSelf() {
  uint64_t nothing = 0;
  rc_message message = message_of(&nothing, rank_, kNoLimit);
  return library_.send(comm_, &message);
}

rc_status RingcollBell::Hear(std::chrono::duration<double> limit,
                             std::optional<RingcollToll>* toll) {
  toll->reset();
  RingcollToll heard;
  rc_message message = message_of(&heard.cycle, RC_ANY_SOURCE, limit.count());
  rc_message_info info{};
  info.struct_size = sizeof(info);
  rc_status status = library_.recv(comm_, &message, &info);
  if (status == RC_TIMEOUT && info.source < 0) return RC_OK;
  if (status != RC_OK) return status;
  heard.rank = info.source;
  *toll = heard;
  return RC_OK;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
