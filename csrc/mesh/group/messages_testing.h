// For tests of channels for messages: a sender and receiver of patterns over them, and where ranks
// that are threads meet to make groups.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "mesh/group/group.h"
#include "mesh/group/messages.h"
#include "transport/world_testing.h"

namespace ringcoll::testing {

/// Whether nobody holds or reads any of them.
inline bool takes_all(Extents& extents) {
  std::vector<std::span<std::byte>> taken;
  size_t count = extents.region().size() / extents.bytes();
  try {
    while (taken.size() < count) taken.push_back(extents.take(&taken));
  } catch (const Error&) {
  }
  for (auto extent : taken) extents.give_back(extent, {});
  return taken.size() == count;
}

/// What the messages of tests say.
struct Stamp {
  int64_t from = 0;
  uint64_t number = 0;  // of those from there, from 1
  uint64_t seed = 0;    // of the pattern
};

/// One rank's. Throws Error(kTimeout) after 40 s.
class Post {
 public:
  explicit Post(Group& group) : group_(group), channels_(group.messages()) {}
  MessageChannels& channels() { return channels_; }

  /// Begun when the channel is open.
  void send(Rank to, uint64_t bytes) { queue_.push_back({to, bytes}); }
  /// Whatever can be done at once. True if anything was.
  bool look() {
    bool moved = channels_.progress();
    moved |= send_some();
    for (size_t i = 0; i < channels_.open().size(); i++) moved |= look_at(channels_.open()[i]);
    return moved;
  }
  /// Until so many have come since it was made, each right and in its order.
  void receive(size_t messages) {
    until([&] { return received_ >= messages; });
    EXPECT_EQ(received_, messages);
  }
  /// Until the channels have all that was sent, taken or not.
  void hand_over() {
    until([this] { return queue_.empty(); });
  }
  /// Until all that was sent has left.
  void complete() {
    until([&] {
      if (!queue_.empty()) return false;
      for (auto [peer, number] : last_)
        if (!dropped_.contains(peer) && channels_[peer].completed() < number) return false;
      for (Rank peer : channels_.open())
        if (!dropped_.contains(peer) && channels_[peer].busy()) return false;
      return true;
    });
  }
  /// Waits for all of their limit.
  int vain_sleeps() const { return vain_sleeps_; }

 private:
  struct Letter {
    Rank to;
    uint64_t bytes;
  };
  template <typename Done>
  void until(Done&& done) {
    constexpr Duration kSleep = std::chrono::milliseconds(45);
    for (Deadline deadline(seconds(40)); !done();) {
      if (look()) continue;
      check(!deadline.passed(), Code::kTimeout, "{} messages received, {} not sent", received_,
            queue_.size());
      auto began = Clock::now();
      channels_.wait(seconds(10), 0);
      vain_sleeps_ += Clock::now() - began > kSleep;
    }
  }
  bool send_some() {
    bool any = false;
    for (size_t i = 0; i < queue_.size();) {
      auto [to, bytes] = queue_[i];
      bool lost = dropped_.contains(to);  // its channel is gone
      if (!lost && (!channels_.try_open(to) || !send_one(to, bytes))) {
        i++;
        continue;
      }
      queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(i));
      any = true;
    }
    return any;
  }
  // Long ones lie in staging memory, each at its place, used again when all have left.
  bool send_one(Rank to, uint64_t bytes) {
    uint64_t seed = static_cast<uint64_t>(group_.rank()) * 1'000'000 + sent_[to] + 1;
    std::vector<std::byte> small;
    std::byte* data = nullptr;
    if (bytes <= channels_.inline_bytes()) {
      small.resize(bytes);
      data = small.data();
    } else if (channels_.sends_from_anywhere(to)) {
      data = kept_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
    } else {
      if (staged_ + bytes > channels_.staging().size()) {
        for (auto [peer, number] : last_)
          if (!dropped_.contains(peer) && channels_[peer].completed() < number) return false;
        staged_ = 0;
      }
      data = channels_.staging().data() + staged_;
    }
    fill(data, bytes, seed);
    Stamp stamp{group_.rank(), sent_[to] + 1, seed};
    // Over tcp a short one, too, may not have left when the call returns.
    if (!small.empty() && channels_.sends_from_anywhere(to)) {
      data = kept_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
      std::memcpy(data, small.data(), bytes);
    }
    uint64_t number = channels_[to].try_send(Envelope::of(stamp), data, bytes);
    if (number == 0) return false;
    if (bytes > channels_.inline_bytes() && !channels_.sends_from_anywhere(to)) staged_ += bytes;
    last_[to] = number;
    sent_[to]++;
    return true;
  }
  // One that has left has closed its end; what it sent before has come.
  bool look_at(Rank from) {
    if (dropped_.contains(from)) return false;
    try {
      return take(from);
    } catch (const Error&) {
      group_.health().throw_if_poisoned();
      channels_.drop(from);
      EXPECT_THROW(channels_.try_open(from), Error);
      dropped_.insert(from);
      return true;
    }
  }
  bool take(Rank from) {
    Endpoint& channel = channels_[from];
    Envelope envelope;
    uint64_t bytes = 0;
    if (!channel.try_peek(&envelope, &bytes)) return false;
    std::vector<std::byte>& place = places_[from];  // the same until the message is there
    if (place.size() < bytes) place.resize(bytes);
    View view;
    if (!channel.try_recv(place.data(), bytes, &view)) return false;
    auto stamp = view.envelope.as<Stamp>();
    EXPECT_EQ(view.envelope, envelope);
    EXPECT_EQ(view.bytes, bytes);
    EXPECT_EQ(stamp.from, from);
    EXPECT_TRUE(filled(view.data, bytes, stamp.seed)) << bytes << " bytes from " << from;
    if (last_from_.contains(from)) {
      EXPECT_EQ(stamp.number, last_from_[from] + 1);
    }
    last_from_[from] = stamp.number;
    channel.release();
    received_++;
    return true;
  }

  Group& group_;
  MessageChannels& channels_;
  std::deque<Letter> queue_;
  std::map<Rank, uint64_t> last_, sent_, last_from_;
  std::vector<std::unique_ptr<std::byte[]>> kept_;
  std::map<Rank, std::vector<std::byte>> places_;
  uint64_t staged_ = 0;
  std::set<Rank> dropped_;
  size_t received_ = 0;
  int vain_sleeps_ = 0;
};

/// Where ranks of a test meet.
class Offers {
 public:
  explicit Offers(Rank size) : offers_(size), all_(size) {}
  void wait() { all_.arrive_and_wait(); }
  void drop_out() { all_.arrive_and_drop(); }
  /// Made by all ranks at once, each with the group that it is in.
  std::unique_ptr<Group> make(Mesh& mesh, const std::vector<Rank>& members) {
    std::shared_ptr<Mesh> shared(&mesh, [](Mesh*) {});
    auto group = std::make_unique<Group>(shared, members);
    offers_[mesh.rank()] = group->offer();
    wait();
    std::vector<Group::Offer> offers;
    for (Rank member : members) offers.push_back(offers_[member]);
    wait();
    group->join(offers);
    return group;
  }

 private:
  std::vector<Group::Offer> offers_;
  std::barrier<> all_;
};

/// Each rank wakes each other one, so each has a bell, and has those of the others open.
inline void wake_all(Group& group, Offers& offers) {
  std::vector<Rank> others;
  for (Rank rank = 0; rank < group.size(); rank++)
    if (rank != group.rank()) others.push_back(rank);
  group.channels().connect(others);
  for (Rank waker = 0; waker < group.size(); waker++) {
    offers.wait();
    if (waker == group.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // by then the others sleep
      for (Rank rank : others) send(group.channels()[rank], {}, nullptr, 0);
      group.channels().flush([] { return "a test"; });
      continue;
    }
    Endpoint& channel = group.channels()[waker];
    if (group.wants_places()) channel.expect(nullptr, 0);
    View view;
    group.channels().wait(
        waker, [&] { return channel.try_recv(nullptr, 0, &view); }, [] { return "a test"; });
    channel.release();
  }
  offers.wait();
}

/// Of this process, in which all ranks are: threads and descriptors, counted while nobody does
/// anything.
struct Used {
  size_t threads, descriptors;
  static size_t entries_of(const char* folder) {
    auto all = std::filesystem::directory_iterator(folder);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  // Threads that make connections: they end by themselves, a moment after the connection is there.
  static bool any_dials() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      if (std::ifstream(task.path() / "comm") >> name && name == "ringcoll-dial") return true;
    }
    return false;
  }
  static Used count(Mesh& mesh, Offers& offers) {
    Used used{};
    offers.wait();
    if (mesh.rank() == 0) {  // alone, since looking takes descriptors
      for (Deadline limit(std::chrono::seconds(10)); any_dials() && !limit.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      used = {entries_of("/proc/self/task"), entries_of("/proc/self/fd")};
    }
    offers.wait();
    return used;
  }
};

}  // namespace ringcoll::testing
