#include "coll/lending.h"

#include <algorithm>
#include <utility>

namespace ringcoll {
namespace {

// A shorter tensor is not lent: packing it costs less than waiting for the completion of its sends.
constexpr size_t kLeastLoanBytes = 32 << 10;
// The same within a host, where the kernel copies a lent tensor, at a cost of a microsecond. With a
// root, one rank packs while others unpack. Otherwise each rank packs and then unpacks.
constexpr size_t kLeastLoanWithinHost = 16 << 10, kLeastLoanOfOneWay = 64 << 10;

}  // namespace

Borrowers Borrowers::of(const Communicator& comm) {
  Borrowers borrowers;
  borrowers.within_host = comm.group().one_domain();
  LinkClass link = borrowers.within_host ? LinkClass::kHost : LinkClass::kNetwork;
  for (Rank rank : comm.topology().ring_order())
    borrowers.at.push_back(comm.group().link_of(rank) == link);
  if (std::ranges::count(borrowers.at, true) == 0) borrowers.at.clear();
  if (borrowers.within_host && !borrowers.at.empty())
    borrowers.copied = {comm.group().copies_up_to(),
                        static_cast<uint64_t>(comm.config().inline_bytes)};
  return borrowers;
}

void Lending::prepare(const Call& call, const Partition& partition) {
  bytes_ = static_cast<uint64_t>(partition.longest_strip()) * size_of(call.dtype);
  bool within_host = borrowers_.within_host && !borrowers_.at.empty();
  least_ = kLeastLoanBytes;
  if (within_host)
    least_ = traits_of(call.collective).has_root ? kLeastLoanOfOneWay : kLeastLoanWithinHost;
  may_lend_ = !borrowers_.at.empty() && bytes_ > 0;
  if (within_host) may_lend_ = bytes_ >= least_ && !call.reduces();
}

void Lending::begin(const Call& call, Partition& partition, size_t in_flight, bool alone) {
  call_ = &call;
  way_ = nullptr;
  lends_ = may_lend_;
  if (!lends_) return;
  if (borrowers_.within_host) choose_within_host(alone);
  if (lends_) comm_.group().lend(partition.loans(least_), in_flight);
}

// Chooses the faster source: the caller's memory or the arena. The time of a call beside others
// also depends on them, so it does not count.
void Lending::choose_within_host(bool alone) {
  way_ = &ways_.ends_of(call_->collective, bytes_);
  lends_ = way_->next(bytes_) == CopyWays::kFromCaller;
  asked_at_.reset();
  if (alone && way_->asks(bytes_)) asked_at_ = Clock::now();
}

// A vector's piece that spans several tensors cannot be lent, since a message lies in one place. In
// an alltoall in place, received data would replace data that is still to be sent to other ranks.
SentFrom Lending::of_piece(std::span<const Fragment> fragments, const Mover& mover) const {
  if (!call_->has_data() || fragments.empty() || !mover.outputs_are_sendable())
    return SentFrom::kArena;
  const rc_buffer& first = call_->buffers[0];
  if (call_->exchanges() && first.input == first.output) return SentFrom::kArena;
  bool one_each = !call_->is_vector() || fragments.size() == 1;
  if (lends_ && one_each && std::ranges::all_of(fragments, &Fragment::lent)) return SentFrom::kLent;
  return borrowers_.copied.most > 0 ? SentFrom::kCopied : SentFrom::kArena;
}

bool Lending::is_taken_by(std::span<const Rank> peers) const {
  return std::ranges::all_of(peers, [&](Rank peer) {
    return peer == comm_.rank() || comm_.channels().host_link(peer)->takes_lent();
  });
}

void Lending::end(bool packed_on_trial) {
  FasterWay* way = std::exchange(way_, nullptr);
  if (!way) return;
  std::optional<Duration> took;
  if (asked_at_ && !packed_on_trial) took = Clock::now() - *asked_at_;
  way->did(bytes_, took);
}

}  // namespace ringcoll
