// Keeps what was computed for a call, such as its schedule and plan, for later calls that are
// alike. Training steps make the same calls again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ringcoll {

/// Maps keys of words to values. One thread at a time.
template <typename Value>
class CallCache {
 public:
  using Key = std::vector<int64_t>;

  /// Keeps about `most` values. A job has a few dozen kinds of calls, but counts that change from
  /// call to call would make the cache grow without limit.
  explicit CallCache(size_t most) : most_(most) {}

  /// Returns the value of `key`; make() makes it if there is none. The reference is valid until
  /// trim().
  template <typename Make>
  Value& get(const Key& key, Make&& make) {
    auto it = entries_.find(key);
    if (it == entries_.end()) it = entries_.emplace(key, Entry{make()}).first;
    it->second.used = ++time_;
    return it->second.value;
  }

  /// If there are more than `most` values, forgets the less recently used half, and returns true.
  /// Precondition: no reference to a value is in use.
  bool trim() {
    if (!full()) [[likely]]
      return false;
    std::vector<uint64_t> used;
    for (const auto& [key, entry] : entries_) used.push_back(entry.used);
    auto middle = used.begin() + static_cast<std::ptrdiff_t>(used.size() / 2);
    std::ranges::nth_element(used, middle);
    std::erase_if(entries_, [&](const auto& entry) { return entry.second.used < *middle; });
    return true;
  }

  bool full() const { return entries_.size() > most_; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    uint64_t used = 0;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by words
      for (int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3;
      return hash;
    }
  };
  using Entries = std::unordered_map<Key, Entry, Hash>;

  const size_t most_;
  Entries entries_;
  uint64_t time_ = 0;
};

}  // namespace ringcoll
