// Some ranks of a job, as threads of this process: what it takes to start them.
//
//   ringcoll_starts <ranks of the job> <first rank here> <ranks here> <store>
//
// It speaks in lines. When its threads wait it says "ready"; at the next line all create their
// communicators, and it answers with JSON: when they began and had done it (seconds of
// CLOCK_MONOTONIC, which is the same in all processes of a host), processor time, descriptors and
// resident memory of the process before and after. At another line they gather four bytes of each
// rank on rank 0, and it answers with the descriptors that there are then. At the end of its input
// it ends.
#include <dirent.h>
#include <ringcoll/ringcoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Part {
  int size, first, count;
  std::string store;
};

// The process ends without its destructors: peers hear of it, and nothing here is worth saving.
[[noreturn]] void fail(const std::string& text) {
  static std::mutex once;
  once.lock();
  std::cerr << "ringcoll_starts: " << text << std::endl;
  std::_Exit(1);
}

void check(rc_status status, int rank, const char* what) {
  if (status != RC_OK)
    fail("rank " + std::to_string(rank) + ": " + what + ": " + ringcoll_error_message());
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int descriptors() {
  int count = -3;  // itself, "." and ".."
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) fail("/proc/self/fd cannot be read");
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

// Of /proc/self/status, in KiB.
long memory_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.compare(0, name.size() + 1, name + ":") == 0)
      return std::stol(line.substr(name.size() + 1));
  fail("/proc/self/status has no " + name);
}

// As many as may be: 1,024 ranks have more than the usual 1,024.
void allow_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// A thread for each rank, which all do what they are told at the same time.
class Ranks {
 public:
  explicit Ranks(int count) {
    for (int i = 0; i < count; i++) threads_.emplace_back([this, i] { work(i); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == count; });
  }
  ~Ranks() {
    tell({});
    for (std::thread& thread : threads_) thread.join();
  }
  /// Returns when all have done it.
  void run(std::function<void(int)> task) {
    tell(std::move(task));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == static_cast<int>(threads_.size()); });
  }

 private:
  void tell(std::function<void(int)> task) {
    std::lock_guard lock(mutex_);
    task_ = std::move(task);
    waiting_ = 0;
    turn_++;
    changed_.notify_all();
  }
  void work(int index) {
    for (int done = 0;; done++) {
      std::unique_lock lock(mutex_);
      waiting_++;
      changed_.notify_all();
      changed_.wait(lock, [&] { return turn_ > done; });
      if (!task_) return;
      lock.unlock();
      task_(index);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(int)> task_;
  int turn_ = 0, waiting_ = 0;
  std::vector<std::thread> threads_;
};

rc_comm* create(const Part& part, int rank) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.size = part.size;
  options.store = part.store.c_str();
  options.name = "starts";
  rc_comm* comm = nullptr;
  check(ringcoll_comm_create(&options, &comm), rank, "create");
  return comm;
}

void gather(rc_comm* comm, int rank, int size) {
  int32_t mine = rank;
  std::vector<int32_t> all(rank == 0 ? size : 0);
  rc_buffer buffer{&mine, rank == 0 ? all.data() : nullptr, 1};
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_GATHER;
  call.dtype = RC_INT32;
  call.buffers = &buffer;
  call.buffer_count = 1;
  check(ringcoll_run(comm, &call), rank, "gather");
  for (int r = 0; r < static_cast<int>(all.size()); r++)
    if (all[r] != r) fail("gather: wrong at rank " + std::to_string(r));
}

std::string start(const Part& part, Ranks* ranks, std::vector<rc_comm*>* comms) {
  std::vector<double> ends(part.count);
  int before = descriptors();
  long resident = memory_kib("VmRSS");
  double processor = processor_seconds(), begin = now();
  ranks->run([&](int i) {
    (*comms)[i] = create(part, part.first + i);
    ends[i] = now();
  });
  processor = processor_seconds() - processor;
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"ranks\": %d, \"begin\": %.6f, \"end\": %.6f, \"processor_s\": %.3f, "
                "\"descriptors_before\": %d, \"descriptors\": %d, \"kib_before\": %ld, "
                "\"kib\": %ld, \"peak_kib\": %ld}",
                part.count, begin, *std::max_element(ends.begin(), ends.end()), processor, before,
                descriptors(), resident, memory_kib("VmRSS"), memory_kib("VmHWM"));
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: ringcoll_starts <ranks> <first> <count> <store>");
  Part part{std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), argv[4]};
  if (part.first < 0 || part.count < 1 || part.first + part.count > part.size)
    fail("ranks " + std::string(argv[2]) + " and on, " + argv[3] + " of them, of " + argv[1]);
  allow_descriptors();
  std::vector<rc_comm*> comms(part.count);
  Ranks ranks(part.count);
  std::cout << "ready" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 0;
  std::cout << start(part, &ranks, &comms) << std::endl;
  if (std::getline(std::cin, line)) {
    ranks.run([&](int i) { gather(comms[i], part.first + i, part.size); });
    std::cout << "{\"descriptors\": " << descriptors() << "}" << std::endl;
    std::getline(std::cin, line);
  }
  ranks.run([&](int i) { ringcoll_comm_destroy(comms[i]); });
  return 0;
}
