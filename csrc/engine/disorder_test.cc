// Several communicators of the same ranks, and messages beside their calls, each rank and each of
// its threads in an order of its own: all of it ends, for nothing waits for another communicator
// (docs/design.md, "Why nothing deadlocks").
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using Random = std::mt19937;

constexpr int kRanks = 4;
constexpr int kBatches = 8;
constexpr int kMostOfABatch = 3;  // calls of a communicator
// They overlap, and number their ranks differently. Behind them comes the whole.
const std::vector<std::vector<int32_t>> kGroups = {{3, 1, 0, 2}, {0, 1, 2}, {3, 2, 1},
                                                   {0, 3},       {2, 0},    {1, 2, 3, 0}};
constexpr size_t kSizes[] = {1, 10, 3'000, 40'000};            // elements of a call
constexpr size_t kBytes[] = {0, 100, 9'000, 70'000, 200'000};  // of a message: short and long ones

/// A communicator, as one rank has it.
struct Part {
  rc_comm* comm;
  unsigned number;
  int rank = ringcoll_comm_rank(comm);
  int size = ringcoll_comm_size(comm);
};

/// For what all ranks of a communicator have to do alike.
Random alike(const Part& part, unsigned what, unsigned index) {
  return Random(part.number * 100'003 + what * 10'007 + index);
}

/// Waits for it to end, in one of the ways that there are.
void wait_somehow(rc_request* request, Random& own) {
  int done = 0;
  switch (own() % 3) {
    case 0:  // and moves it
      EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK) << error_text();
      break;
    case 1:
      EXPECT_EQ(ringcoll_wait(request, 60, &done), RC_OK) << error_text();
      break;
    default:
      for (int i = 0; i < 60'000 && !done; i++) {
        ASSERT_EQ(ringcoll_wait(request, 0, &done), RC_OK) << error_text();
        if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
  }
  EXPECT_TRUE(done);
  ringcoll_request_free(request);
}

/// The index-th call of a communicator: a sum or a broadcast.
class Call {
 public:
  Call(const Part& part, unsigned index) : part_(part), index_(index) {
    Random random = alike(part, 1, index);
    broadcasts_ = random() % 4 == 0;
    root_ = static_cast<int>(random() % static_cast<unsigned>(part.size));
    data_.assign(kSizes[random() % std::size(kSizes)], of(part.rank));
    buffer_ = {data_.data(), data_.data(), static_cast<int64_t>(data_.size())};
    call_ = sum_of(&buffer_);
    call_.root = root_;
    if (broadcasts_) call_.collective = RC_BROADCAST;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run() {
    EXPECT_EQ(ringcoll_run(part_.comm, &call_), RC_OK) << error_text();
    check();
  }
  void start() { EXPECT_EQ(ringcoll_start(part_.comm, &call_, &request_), RC_OK) << error_text(); }
  void execute() {
    int done = 0;
    EXPECT_EQ(ringcoll_wait(request_, -1, &done), RC_OK) << error_text();
    ringcoll_request_free(request_);
    check();
  }
  void end(Random& own) {
    if (request_) wait_somehow(request_, own);
    check();
  }

 private:
  /// What a rank has before it. No two calls that follow one another have the same.
  float of(int rank) const { return static_cast<float>(10 * (index_ % 100) + rank + 1); }
  void check() const {
    float expected = broadcasts_ ? of(root_) : 0;
    for (int rank = 0; rank < part_.size && !broadcasts_; rank++) expected += of(rank);
    auto wrong = std::ranges::count_if(data_, [&](float one) { return one != expected; });
    EXPECT_EQ(wrong, 0) << "communicator " << part_.number << ", call " << index_ << ": "
                        << data_[0] << ", not " << expected;
  }

  const Part& part_;
  const unsigned index_;
  bool broadcasts_ = false;
  int root_ = 0;
  std::vector<float> data_;
  rc_buffer buffer_{};
  rc_call call_{};
  rc_request* request_ = nullptr;
};

/// The calls of one communicator by a thread of its own: it runs them, or starts some and comes
/// back to them when it likes.
void one_communicator(const Part& part, Random own) {
  std::deque<Call> started;
  for (unsigned i = 0; i < kBatches * kMostOfABatch; i++) {
    if (own() % 2) {
      Call(part, i).run();
    } else {
      started.emplace_back(part, i).start();
    }
    while (!started.empty() && own() % 2) {
      started.front().end(own);
      started.pop_front();
    }
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
  }
  for (Call& call : started) call.end(own);
}

/// The calls of several communicators by one thread, some of each at a time. They are started in
/// any order that keeps those of each in theirs, and waited for in any order.
void several_communicators(const std::vector<Part>& parts, Random own) {
  for (unsigned batch = 0; batch < kBatches; batch++) {
    std::vector<const Part*> turns;
    for (const Part& part : parts)
      turns.insert(turns.end(), 1 + alike(part, 2, batch)() % kMostOfABatch, &part);
    std::ranges::shuffle(turns, own);
    std::deque<Call> calls;
    std::map<const Part*, unsigned> begun;
    for (const Part* part : turns)
      calls.emplace_back(*part, batch * kMostOfABatch + begun[part]++).start();
    std::vector<Call*> waits;
    for (Call& call : calls) waits.push_back(&call);
    std::ranges::shuffle(waits, own);
    // Of some batches nobody only looks: whoever waits executes.
    bool executes = own() % 2;
    for (Call* call : waits) executes ? call->execute() : call->end(own);
  }
}

/// What one rank sends another in a round.
std::vector<uint8_t> content(const Part& part, unsigned round, int from, int to) {
  Random random = alike(part, 3, round * 64 + static_cast<unsigned>(from * 8 + to));
  std::vector<uint8_t> data(kBytes[random() % std::size(kBytes)]);
  for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<uint8_t>(i * 7 + random() % 2);
  return data;
}

/// A message to or from a peer, with its request if it has one.
struct Message {
  const Part* part;
  std::vector<uint8_t> data;
  rc_message message{};
  rc_request* request = nullptr;

  Message(const Part& of, std::vector<uint8_t> bytes, int peer, unsigned tag)
      : part(&of), data(std::move(bytes)) {
    message.struct_size = sizeof message;
    message.data = data.data();
    message.bytes = static_cast<int64_t>(data.size());
    message.peer = peer;
    message.tag = static_cast<int32_t>(tag);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  void receive() {
    EXPECT_EQ(ringcoll_irecv(part->comm, &message, &request), RC_OK) << error_text();
  }
  void send(bool at_once) {
    rc_status status = at_once ? ringcoll_send(part->comm, &message)
                               : ringcoll_isend(part->comm, &message, &request);
    EXPECT_EQ(status, RC_OK) << error_text();
  }
  /// Of a receive: whose it was, and what.
  void check_received() const {
    rc_message_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(ringcoll_received(request, &info), RC_OK) << error_text();
    auto round = static_cast<unsigned>(message.tag);
    auto expected = content(*part, round, info.source, part->rank);
    std::vector<uint8_t> got(data.begin(), data.begin() + info.bytes);
    EXPECT_TRUE(got == expected) << "communicator " << part->number << ", round " << round << ": "
                                 << got.size() << " bytes of rank " << info.source;
  }
};

/// In each round every rank of a communicator sends every other a message. What comes is asked for
/// first, in any order, so that sends that wait for that may be made in any order, too.
void messages(const std::vector<Part>& parts, Random own) {
  for (unsigned round = 0; round < kBatches; round++) {
    std::deque<Message> receives, sends;
    for (const Part& part : parts) {
      bool from_any = own() % 2;
      for (int peer = 0; peer < part.size; peer++) {
        if (peer == part.rank) continue;
        std::vector<uint8_t> room(*std::ranges::max_element(kBytes));
        receives.emplace_back(part, std::move(room), from_any ? RC_ANY_SOURCE : peer, round);
        sends.emplace_back(part, content(part, round, part.rank, peer), peer, round);
      }
    }
    auto in_any_order = [&own](std::deque<Message>& all, auto&& action) {
      std::vector<Message*> order;
      for (Message& message : all) order.push_back(&message);
      std::ranges::shuffle(order, own);
      for (Message* message : order) action(*message);
    };
    in_any_order(receives, [](Message& one) { one.receive(); });
    in_any_order(sends, [&](Message& one) { one.send(own() % 2); });
    in_any_order(sends, [&](Message& one) {
      if (one.request) wait_somehow(one.request, own);
    });
    in_any_order(receives, [&](Message& one) {
      int done = 0;
      EXPECT_EQ(ringcoll_wait(one.request, own() % 2 ? -1 : 60, &done), RC_OK) << error_text();
      one.check_received();
      ringcoll_request_free(one.request);
    });
  }
}

/// Those that this rank is in, the whole among them.
std::vector<Part> parts_of(rc_comm* whole, int rank) {
  std::vector<Part> parts;
  for (unsigned i = 0; i < kGroups.size(); i++) {
    bool member = std::ranges::count(kGroups[i], rank) > 0;
    rc_comm* comm = nullptr;
    EXPECT_EQ(
        ringcoll_comm_split(whole, kGroups[i].data(),
                            member ? static_cast<int32_t>(kGroups[i].size()) : 0, "part", &comm),
        RC_OK)
        << error_text();
    if (comm) parts.push_back({comm, i});
  }
  parts.push_back({whole, static_cast<unsigned>(kGroups.size())});
  return parts;
}

class Disorder : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(, Disorder, transports_of_one_process(),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Disorder, OfCommunicatorsThreadsAndMessagesEnds) {
  world(kRanks, [](rc_comm* whole, int rank) {
    std::vector<Part> parts = parts_of(whole, rank), shared, own;
    // The same on all ranks of each: whose calls have a thread for themselves.
    for (const Part& part : parts) (part.number % 2 ? own : shared).push_back(part);
    unsigned seed = static_cast<unsigned>(rank) * 100;
    std::vector<std::thread> threads;
    for (const Part& part : own)
      threads.emplace_back([&part, random = Random(seed++)] { one_communicator(part, random); });
    threads.emplace_back([&] { several_communicators(shared, Random(seed + 50)); });
    threads.emplace_back([&] { messages(parts, Random(seed + 51)); });
    for (std::thread& thread : threads) thread.join();
    for (const Part& part : parts)
      if (part.comm != whole) ringcoll_comm_destroy(part.comm);
  });
}

}  // namespace
}  // namespace ringcoll::testing
