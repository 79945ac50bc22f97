// An index from ids to slots: open addressing, with linear probing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "table/initial.h"

namespace ringcoll {

/// A place of a row. Slots are numbered from 0 on.
using RowSlot = uint32_t;

class IdIndex {
 public:
  std::optional<RowSlot> find(int64_t id) const {
    if (places_.empty()) return std::nullopt;
    const Place& place = places_[place_of(id)];
    return place.used ? std::optional(place.slot) : std::nullopt;
  }
  size_t size() const { return size_; }
  /// How many places find() reads for an id that is there.
  size_t probes(int64_t id) const { return distance(first_choice(id), place_of(id)) + 1; }

  /// For so many ids in all, inserting them allocates nothing. If memory is lacking, the index is
  /// unchanged, and std::bad_alloc is thrown.
  void reserve(size_t ids) {
    if (2 * ids <= places_.size()) return;
    size_t places = kLeastPlaces;
    while (places < 2 * ids) places *= 2;
    std::vector<Place> before(places);
    before.swap(places_);
    for (const Place& place : before)
      if (place.used) places_[place_of(place.id)] = place;
  }

  /// Precondition: the id is not there, and reserve() has made place for it.
  void insert(int64_t id, RowSlot slot) {
    places_[place_of(id)] = {.id = id, .slot = slot, .used = true};
    size_++;
  }

  /// Precondition: the id is there.
  void erase(int64_t id) {
    size_t hole = place_of(id);
    // An id may be found as long as no place between its first choice and its own is empty.
    for (size_t at = next(hole); places_[at].used; at = next(at)) {
      const size_t wanted = first_choice(places_[at].id);
      if (distance(wanted, at) < distance(hole, at)) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = {};
    size_--;
  }

 private:
  struct Place {
    int64_t id = 0;
    RowSlot slot = 0;
    bool used = false;
  };
  static constexpr size_t kLeastPlaces = 16;

  /// From the upper half of the spread bits: all ids of a shard may have the same lowest bits
  /// (shard_of()), so these would leave most places without a first choice.
  size_t first_choice(int64_t id) const {
    return std::rotr(spread(static_cast<uint64_t>(id)), 32) & (places_.size() - 1);
  }
  size_t next(size_t place) const { return (place + 1) & (places_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (places_.size() - 1); }
  /// The place of the id, or the empty one that it would get.
  size_t place_of(int64_t id) const {
    size_t at = first_choice(id);
    while (places_[at].used && places_[at].id != id) at = next(at);
    return at;
  }

  std::vector<Place> places_;  // as many as a power of two, at least twice the ids
  size_t size_ = 0;
};

}  // namespace ringcoll
