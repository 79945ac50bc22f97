#include "coll/executor.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "coll/terrain.h"

namespace ringcoll {
namespace {

// From here on a piece is worth huge pages.
constexpr size_t kLargePieceBytes = 64 << 10;
constexpr size_t kLargeNetworkPieceBytes = 1 << 20;
// How long a rank that leaves keeps its arena for peers that have not read all of it.
constexpr Duration kLongestDrain = std::chrono::seconds(5);

// By position: who can be sent the caller's memory as it lies. Empty: nobody.
std::vector<bool> zero_copy_of(const Communicator& comm) {
  std::vector<bool> far;
  for (Rank rank : comm.topology().ring_order())
    far.push_back(comm.group().link_of(rank) == LinkClass::kNetwork);
  return std::ranges::count(far, true) > 0 ? far : std::vector<bool>();
}

// Between hosts a piece waits for the network, and there are more slots to give pages to: 16 calls
// of 64 KiB took 50 ms each there until all had theirs. And none where ranks share CPUs, which the
// kernel needs to itself for a moment to give one: 16 calls of 1 MiB took 50 to 110 ms.
size_t least_huge_bytes(const Terrain& terrain) {
  if (terrain.one_domain) return kLargePieceBytes;
  return terrain.oversubscribed ? std::numeric_limits<size_t>::max() : kLargeNetworkPieceBytes;
}

}  // namespace

Executor::Executor(Communicator& comm)
    : comm_(comm),
      plans_(comm.rank(), comm.topology().ring_order(), zero_copy_of(comm), terrain_of(comm)),
      slots_(comm.group().mesh().arena(), comm.group().extent(),
             static_cast<size_t>(plans_.selector().slots()),
             static_cast<size_t>(plans_.selector().bank_bytes()),
             least_huge_bytes(plans_.selector().terrain())),
      run_(comm, plans_, slots_) {}

Executor::~Executor() {
  Deadline deadline(std::min(kLongestDrain, seconds(comm_.config().timeout_s)));
  try {
    for (const Slot& slot : slots_.all())
      for (const Sent& sent : slot.unread)
        while (!sent.complete() && !deadline.passed() && !comm_.poisoned()) {
          sent.link->progress();
          sent.link->wait(std::chrono::milliseconds(1));
        }
  } catch (const Error& error) {
    log_debug("closing {}: {}", comm_.name(), error.what());
  }
}

void Executor::run(const Call& call) {
  comm_.throw_if_poisoned();
  try {
    comm_.counters().calls += 1;
    comm_.channels().set_deadline(
        call.timeout_s > 0 ? std::optional(Deadline(seconds(call.timeout_s))) : std::nullopt);
    run_.begin(call, signature_of(call, comm_.size(), ++sequence_));
    while (!run_.advance()) wait_for(run_.want());
    comm_.channels().flush([this] { return run_.doing(); });
  } catch (const std::exception& error) {  // std::bad_alloc too: nobody may wait for this rank
    run_.abandon();
    throw comm_.fail(as_error(error).within(run_.doing()));
  }
}

void Executor::wait_for(const Want& want) {
  auto doing = [&] { return run_.doing(); };
  switch (want.what) {
    case Want::What::kMessage: {
      auto there = [&] { return want.link->try_recv(want.place, want.bytes, &run_.view()); };
      comm_.channels().wait(want.peer, there, doing);
      return run_.take_view();
    }
    case Want::What::kCredit:
    case Want::What::kCompletion: {
      uint64_t before = run_.progress();
      bool memory = want.what == Want::What::kCompletion;
      comm_.channels().wait(
          want.peer, [&] { return run_.advance() || run_.progress() != before; },
          [&] { return doing() + (memory ? ": waiting until its data is read" : ""); });
      return;
    }
    case Want::What::kLinks:
      comm_.channels().connect(want.planned->peers);
      want.planned->connected = true;
  }
}

}  // namespace ringcoll
