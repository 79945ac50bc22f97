// What exchanges ask of a store: all ranks as threads of this process, over a store that counts.
//
//   exchange_counts <ranks> <bytes that each rank says in round 1> [<in round 2> …]
//
// Prints JSON: requests of each kind of all ranks, the most of one rank but for rank 0, those of
// rank 0, and of each round the bytes of its outcome. It is made of the library's own objects, for
// the C ABI takes no store.
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bootstrap/exchange.h"
#include "bootstrap/store.h"

namespace ringcoll {
namespace {

// Ranks that have the outcome of a round in memory at a time.
constexpr int kReaders = 64;

struct Counts {
  long sets = 0, gets = 0, removals = 0;
  long all() const { return sets + gets + removals; }
};

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::vector<size_t> outcomes;
  std::counting_semaphore<> readers{kReaders};
};

/// A value that is waited for is one request: a rank sleeps until it is there.
class CountingStore final : public Store {
 public:
  CountingStore(Shared& shared, Counts& counts) : shared_(shared), counts_(counts) {}
  ~CountingStore() override { leave(); }

  void set(const std::string& key, const std::string& value, Deadline) override {
    leave();
    counts_.sets++;
    std::lock_guard lock(shared_.mutex);
    if (key.ends_with(".all")) shared_.outcomes.push_back(value.size());
    shared_.values[key] = value;
    shared_.changed.notify_all();
  }
  std::optional<std::string> try_get(const std::string& key, Deadline) override {
    return find(key, Deadline(Duration::zero()));
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    return find(key, deadline);
  }
  void remove(const std::string& key, Deadline) override {
    leave();
    counts_.removals++;
    std::lock_guard lock(shared_.mutex);
    shared_.values.erase(key);
  }
  const std::string& name() const override { return name_; }

 private:
  std::optional<std::string> find(const std::string& key, Deadline deadline) {
    leave();
    counts_.gets++;
    std::unique_lock lock(shared_.mutex);
    bool there = shared_.changed.wait_for(lock, deadline.left(),
                                          [&] { return shared_.values.contains(key); });
    if (!there) return {};
    if (key.ends_with(".all")) {
      lock.unlock();
      shared_.readers.acquire();
      reading_ = true;
      lock.lock();
    }
    return shared_.values.at(key);
  }
  // What was read is of no use any more when the rank asks for something else.
  void leave() {
    if (reading_) shared_.readers.release();
    reading_ = false;
  }

  Shared& shared_;
  Counts& counts_;
  const std::string name_ = "counting://";
  bool reading_ = false;
};

std::string report(const std::vector<Counts>& counts, const Shared& shared) {
  Counts sum;
  long most = 0;
  for (size_t rank = 0; rank < counts.size(); rank++) {
    sum.sets += counts[rank].sets;
    sum.gets += counts[rank].gets;
    sum.removals += counts[rank].removals;
    if (rank > 0) most = std::max(most, counts[rank].all());
  }
  std::string outcomes;
  for (size_t bytes : shared.outcomes)
    outcomes += fmt::format("{}{}", outcomes.empty() ? "" : ", ", bytes);
  return fmt::format(
      "{{\"requests\": {{\"set\": {}, \"get\": {}, \"remove\": {}}}, \"of_rank_0\": {}, "
      "\"most_of_another\": {}, \"outcomes\": [{}]}}",
      sum.sets, sum.gets, sum.removals, counts[0].all(), most, outcomes);
}

void run(Rank size, const std::vector<size_t>& blob_bytes) {
  Shared shared;
  std::vector<Counts> counts(size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      auto exchange = make_store_exchange(std::make_unique<CountingStore>(shared, counts[rank]),
                                          "counts", rank, size);
      for (size_t bytes : blob_bytes)
        exchange->all_gather(std::string(bytes, static_cast<char>('a' + rank % 26)),
                             Deadline(seconds(600)));
    });
  for (std::thread& thread : threads) thread.join();
  std::cout << report(counts, shared) << std::endl;
}

}  // namespace
}  // namespace ringcoll

int main(int argc, char** argv) try {
  std::vector<size_t> blob_bytes;
  for (int i = 2; i < argc; i++) blob_bytes.push_back(std::stoul(argv[i]));
  if (blob_bytes.empty()) throw std::invalid_argument("usage: exchange_counts <ranks> <bytes> …");
  ringcoll::run(std::stoi(argv[1]), blob_bytes);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "exchange_counts: " << error.what() << std::endl;
  return 1;
}
