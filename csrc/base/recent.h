// The latest entries of a history that would grow for ever.
#pragma once

#include <cstddef>
#include <deque>
#include <map>

namespace ringcoll {

/// Keeps the values of the last `most` keys that were added. One thread at a time.
template <typename Key, typename Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  /// Null if the key was never added, or has been dropped since.
  Value* find(const Key& key) {
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  const Value* find(const Key& key) const { return const_cast<Recent*>(this)->find(key); }
  /// The value of the key. If the key is not there, adds `value` as the newest, which may drop the
  /// oldest.
  Value& add(const Key& key, const Value& value = Value()) {
    auto [entry, is_new] = values_.try_emplace(key, value);
    if (!is_new) return entry->second;
    order_.push_back(key);
    if (order_.size() > most_) {
      values_.erase(order_.front());
      order_.pop_front();
    }
    return entry->second;
  }
  size_t size() const { return values_.size(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  const size_t most_;
  std::map<Key, Value> values_;
  std::deque<Key> order_;  // oldest first
};

}  // namespace ringcoll
