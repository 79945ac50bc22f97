#include "transport/shm/reserve.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/order.h"

namespace ringcoll::shm {

Reserve::Reserve(SharedMemory& control, SharedMemory& handed, const Layout& layout)
    : control_(control), handed_(handed), layout_(layout) {
  if (layout.spare_units() > 0) free_[layout.whole_units()] = layout.spare_units();
}

// The acquire orders what the peer has read before what is written there from now on. A dead
// process reads nothing any more, so the flag that says so needs no order.
bool Witness::has_ended() const {
  return observe(*open) != base || (dead && dead->load(std::memory_order_relaxed));
}

// The acquire orders as above. A count of another base belongs to a part that has, or had, that
// unit.
bool Reader::may_read() const {
  uint64_t count = observe(*released) - base;
  return (count >= kBaseStep || count < last) && !witness.has_ended();
}

std::atomic<uint64_t>& Reserve::open(const Block& block) {
  return reinterpret_cast<PeerLines*>(control_.data() + layout_.lines(block.first))->open;
}

Block Reserve::take(uint32_t units) {
  std::lock_guard lock(mutex_);
  free_ended();
  auto found = std::ranges::find_if(free_, [&](const auto& gap) { return gap.second >= units; });
  check(found != free_.end(), Code::kTransport,
        "shared memory has no room for one more group with {} ranks here: {} are in use, and {} "
        "have ended here but not on all of their ranks; close some groups, lower "
        "RINGCOLL_INLINE_BYTES, or use RINGCOLL_TRANSPORT=tcp",
        units, used_, ended_.size());
  auto [first, free_units] = *found;
  free_.erase(found);
  if (free_units > units) free_[first + units] = free_units - units;
  used_++;
  Block block{first, units, kBaseStep * (1 + bases_++ % (kBases - 1))};
  // The 0 of the block's last life may have been missed. A peer then sees this base instead, and
  // learns from it that the block has ended. A relaxed store would not bring what the 0 brings,
  // since it continues no release sequence (C++20).
  publish(open(block), block.base);
  return block;
}

void Reserve::give_back(const Block& block, std::vector<Witness> witnesses) {
  std::lock_guard lock(mutex_);
  used_--;
  // A peer that observes the 0 (Witness::has_ended) comes after all that this rank has read there.
  publish(open(block), 0);
  ended_.push_back({block, std::move(witnesses)});
  free_ended();
}

void Reserve::free_ended() {
  for (auto ended = ended_.begin(); ended != ended_.end();) {
    std::erase_if(ended->witnesses, [](const Witness& witness) { return witness.has_ended(); });
    if (ended->witnesses.empty()) {
      free(ended->block);
      ended = ended_.erase(ended);
    } else {
      ended++;
    }
  }
}

// Returns the block's pages to the system, except those that it shares with its neighbours. Buffers
// need not read as zeros: a rank reads only those buffers that a message has named.
void Reserve::free(const Block& block) {
  uint32_t first = block.first, units = block.units;
  control_.clear(control_.data() + layout_.lines(first), layout_.unit_bytes() * units);
  uint32_t with_buffers = std::min(first + units, layout_.units_with_buffers());
  if (first < with_buffers)
    handed_.discard(handed_.data() + layout_.handed(first),
                    layout_.handed_unit_bytes() * (with_buffers - first));
  auto next = free_.upper_bound(first);
  if (next != free_.end() && first + units == next->first) {
    units += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += units;
      return;
    }
  }
  free_[first] = units;
}

}  // namespace ringcoll::shm
