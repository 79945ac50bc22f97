#include "transport/verbs/common_watch.h"

#include <algorithm>
#include <utility>

namespace ringcoll::rdma {

CommonWatch::Listener::Listener(CommonWatch& common) : common_(common) {
  std::lock_guard lock(common_.mutex_);
  common_.listeners_.push_back(this);
}

CommonWatch::Listener::~Listener() {
  std::lock_guard lock(common_.mutex_);
  std::erase(common_.listeners_, this);
}

void CommonWatch::Listener::note(Range change) {
  if (count_ < kMostChanges)
    changes_[count_++] = change;
  else
    changes_[0] = {0, UINTPTR_MAX};
}

bool CommonWatch::Listener::watch(const void* data, size_t bytes) {
  std::lock_guard lock(common_.mutex_);
  if (!common_.watch_) common_.watch_ = std::make_unique<UnmapWatch>();
  return common_.watch_->watch(data, bytes);
}

// A thread that frees memory while the watch is asked holds none of these locks. Under them only
// the watch and the list are allocated, before there is anything to free.
void CommonWatch::Listener::take_changes(const Changed& changed) {
  std::array<Range, kMostChanges> taken;
  size_t count = 0;
  {
    std::lock_guard lock(common_.mutex_);
    if (!common_.watch_) return;
    common_.watch_->take_changes([this](uintptr_t first, uintptr_t end) {
      for (Listener* listener : common_.listeners_) listener->note({first, end});
    });
    count = std::exchange(count_, 0);
    std::copy_n(changes_.begin(), count, taken.begin());
  }
  for (size_t i = 0; i < count; i++) changed(taken[i].first, taken[i].end);
}

}  // namespace ringcoll::rdma
