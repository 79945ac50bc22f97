// The last entries of a history that would grow for ever.
#pragma once

#include <cstddef>
#include <deque>
#include <map>

namespace ringcoll {

/// The values of the last `most` keys that were added. One thread at a time.
template <typename Key, typename Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  /// Null: never added, or long ago.
  Value* find(const Key& key) {
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  const Value* find(const Key& key) const { return const_cast<Recent*>(this)->find(key); }
  /// That of the key: if it was not there, `value`, as the newest, for which the oldest may go.
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
  std::deque<Key> order_;  // as they were added
};

}  // namespace ringcoll
