// Rank 0's end of tcp://: keeps the values and serves the other ranks.
//
// Without a secret of the job's own anybody who reaches the port can connect, ask and write. So
// what others have here is bounded, in bytes and in connections, and where it is too much those go
// first that no rank is like: who holds the most bytes, who has asked for nothing yet, who is the
// oldest. A rank that is taken for a stranger comes again.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/gate.h"
#include "bootstrap/store.h"
#include "net/event_loop.h"

namespace ringcoll {

inline constexpr uint32_t kTcpStoreMagic = 0x54534352;  // "RCST"
inline constexpr uint32_t kStoreChannel = UINT32_MAX;

enum class Operation : uint32_t { kSet = 1, kGet = 2, kRemove = 3, kWait = 4 };
enum class Status : uint32_t { kDone = 1, kAbsent = 2, kConflict = 3, kFull = 4 };

// On the wire as they are; key and value, or value, follow.
struct Request {
  uint32_t magic;
  uint32_t operation;
  uint32_t key_bytes;
  uint32_t value_bytes;
};
static_assert(sizeof(Request) == 16);
struct Response {
  uint32_t magic;
  uint32_t status;
  uint32_t value_bytes;
  uint32_t reserved;
};
static_assert(sizeof(Response) == 16);

/// The same for every store: what a store is for is said by its address.
const GroupId& store_group();

/// Shared by the answers to all ranks: the outcome of a round has something of each of them.
using Value = std::shared_ptr<const std::string>;

/// The values, and the loop that serves them. All but the destructor for any thread, where the loop
/// has one of its own.
class TcpStoreServer {
 public:
  /// What others than rank 0 may have here, of a job of that size: values, requests that are not
  /// whole, and connections. What ranks set takes some kilobytes each, or a file of megabytes.
  static size_t most_bytes(Rank size) {
    return (size_t{32} << 20) + static_cast<size_t>(size) * (size_t{256} << 10);
  }
  static size_t most_clients(Rank size) { return 64 + 2 * static_cast<size_t>(size); }

  TcpStoreServer(const std::vector<Address>& addresses, const std::string& secret, Rank size);
  ~TcpStoreServer();

  struct Answer {
    Status status;
    Value value;  // null: none
  };
  /// As rank 0 asks. What it sets is not bounded.
  Answer serve(Operation operation, const std::string& key, const std::string& value);
  /// Null if it is not set until then. One thread at a time.
  Value wait(const std::string& key, Deadline deadline);
  std::string remark() const;
  /// Why there is no thread: then serve() and wait() serve the others, too, while they are called.
  const std::optional<Error>& threadless() const { return loop_.threadless(); }

 private:
  struct Client {
    Fd fd;
    uint64_t serial = 0;  // rises
    std::string in;
    size_t refused = 0;                 // bytes to come of a request for which there is no room
    bool asked = false;                 // a whole request, at least once
    std::optional<std::string> awaits;  // the key
    Response head{};                    // of the answer that is being sent, value behind it
    Value value;
    size_t sent = 0;
    bool answering = false;
  };
  struct Kept {
    Value value;
    uint64_t by = kRankZero;  // serial of the client that has set it
    uint64_t serial = 0;      // rises
  };
  static constexpr uint64_t kRankZero = 0;
  using Clients = std::map<int, Client>;

  // Under the lock.
  Answer apply(Operation operation, const std::string& key, std::string value, uint64_t by);
  void erase_value(std::map<std::string, Kept>::iterator entry);
  static size_t bytes_of(const std::string& key, const Kept& kept);
  std::map<uint64_t, size_t> bytes_by_client() const;
  bool make_room(size_t bytes, uint64_t by);
  bool drop_value_of_one_who_is_gone();
  void make_room_for_a_client();
  void drop(Clients::iterator entry);
  void tell_who_waits(const std::string& key, const Value& value);
  void stop_waiting(Client& client);
  bool is_served(Client& client, uint32_t events);
  static size_t whole_bytes(std::string_view in, std::string_view more);
  bool read_some(Client& client);
  bool refuse(Client& client, size_t got);
  bool find_request(const Client& client, Request* request, size_t* bytes) const;
  bool serve_request(Client& client, const Request& request, size_t bytes);
  bool answer(Client& client, Answer answer);
  bool flush(Client& client);

  // On the loop's thread.
  void on_refused(const Gate::Refusal& refusal);
  void admit(Fd fd);
  void on_ready(int number, uint32_t events);

  EventLoop loop_;  // the first, so that it outlives what is watched on it
  const size_t most_bytes_, most_clients_;
  mutable std::mutex mutex_;
  bool closing_ = false;
  std::map<std::string, Kept> values_;
  size_t kept_bytes_ = 0;  // of keys and values that others than rank 0 have set
  Clients clients_;
  uint64_t serial_ = kRankZero;                      // the last that was given
  std::map<std::string, std::vector<int>> waiting_;  // their descriptors, by key
  const std::string* awaited_here_ = nullptr;        // by rank 0
  std::condition_variable set_here_;
  size_t reading_bytes_ = 0;  // memory of requests that are not whole yet
  std::string remark_;
  uint64_t refusals_ = 0;  // on the loop's thread
  std::vector<std::unique_ptr<Gate>> gates_;
};

}  // namespace ringcoll
