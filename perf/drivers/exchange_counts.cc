// What exchanges ask of a store: all ranks as threads of this process, over a store that counts.
//
//   exchange_counts <ranks> <bytes that each rank says in round 1> [<in round 2> …]
//
// Prints JSON: requests of each kind of all ranks, the most of one rank but for rank 0, those of
// rank 0, the bytes of all values that are set, and of each round those of the longest that a rank
// sets to say its part, and of the outcome. What ranks say is random, so that nothing of it can be
// compressed: what they say of themselves has much in common. It is made of the library's own
// objects, for the C ABI takes no store.
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bootstrap/exchange.h"
#include "store/store.h"

namespace ringcoll {
namespace {

// Ranks that have the outcome of a round in memory at a time.
constexpr int kReaders = 64;

struct Counts {
  long sets = 0, gets = 0, removals = 0, bytes_set = 0;
  long all() const { return sets + gets + removals; }
};

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::vector<size_t> records;  // of each round the longest
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
    counts_.bytes_set += static_cast<long>(value.size());
    std::lock_guard lock(shared_.mutex);
    note_record(key, value.size());
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
  // A round's records are set before its outcome.
  void note_record(const std::string& key, size_t bytes) {
    size_t rank_at = key.rfind('.') + 1;
    if (key.find_first_not_of("0123456789", rank_at) != std::string::npos) return;
    size_t round = shared_.outcomes.size();
    if (shared_.records.size() <= round) shared_.records.resize(round + 1);
    shared_.records[round] = std::max(shared_.records[round], bytes);
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
    sum.bytes_set += counts[rank].bytes_set;
    if (rank > 0) most = std::max(most, counts[rank].all());
  }
  return fmt::format(
      "{{\"requests\": {{\"set\": {}, \"get\": {}, \"remove\": {}}}, \"of_rank_0\": {}, "
      "\"most_of_another\": {}, \"bytes_set\": {}, \"records\": [{}], \"outcomes\": [{}]}}",
      sum.sets, sum.gets, sum.removals, counts[0].all(), most, sum.bytes_set,
      fmt::join(shared.records, ", "), fmt::join(shared.outcomes, ", "));
}

std::string random_bytes(size_t bytes, std::mt19937& random) {
  std::string text(bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

void run(Rank size, const std::vector<size_t>& blob_bytes) {
  Shared shared;
  std::vector<Counts> counts(size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      auto exchange = make_store_exchange(std::make_unique<CountingStore>(shared, counts[rank]),
                                          "counts", rank, size);
      std::mt19937 random(static_cast<unsigned>(rank));
      for (size_t bytes : blob_bytes)
        exchange->all_gather(random_bytes(bytes, random), Deadline(seconds(600)));
      exchange->finish();
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
