// Rank 0's end of tcp://: keeps the values and serves the other ranks.
//
// Without a secret of the job, any process that reaches the port can connect and write. So the
// bytes and connections of all but rank 0 are bounded. At the bound of bytes the server drops the
// client with the most bytes. At the bound of connections it drops the oldest, first of those that
// have made no request. A rank that is dropped by mistake reconnects.
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
#include "connect/gate.h"
#include "net/event_loop.h"
#include "store/store.h"

namespace ringcoll {

inline constexpr uint32_t kTcpStoreMagic = 0x54534352;  // "RCST"
inline constexpr uint32_t kStoreChannel = UINT32_MAX;

enum class Operation : uint32_t { kSet = 1, kGet = 2, kRemove = 3, kWait = 4 };
enum class Status : uint32_t { kDone = 1, kAbsent = 2, kConflict = 3, kFull = 4 };

// Sent as they are. A key and a value follow the request, a value follows the response.
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

/// One group for all stores: the address alone tells which store is meant.
const GroupId& store_group();

/// Shared, not copied, by the answers to all ranks: the outcome of a round contains data of each
/// rank.
using Value = std::shared_ptr<const std::string>;

/// The values, and the event loop that serves them. All methods but the destructor are for any
/// thread, provided that the loop has a thread of its own.
class TcpStoreServer {
 public:
  /// Bounds for all ranks but rank 0 together, in a job of `size` ranks: values, incomplete
  /// requests and connections. A rank sets some kilobytes, or a file of megabytes.
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
  /// Executes a request of rank 0, whose values are not bounded.
  Answer serve(Operation operation, const std::string& key, const std::string& value);
  /// Returns the value, or null at the deadline. One thread at a time.
  Value wait(const std::string& key, Deadline deadline);
  std::string remark() const;
  /// Why the loop has no thread. Without one, serve() and wait() serve the other ranks while they
  /// run.
  const std::optional<Error>& threadless() const { return loop_.threadless(); }

 private:
  struct Client {
    Fd fd;
    uint64_t serial = 0;  // unique; newer clients have larger ones
    std::string in;
    size_t refused = 0;                 // bytes still to come of a request that has no room
    bool asked = false;                 // has sent a complete request at least once
    std::optional<std::string> awaits;  // the key
    Response head{};                    // of the answer that is being sent; `value` follows
    Value value;
    size_t sent = 0;
    bool answering = false;
  };
  struct Kept {
    Value value;
    uint64_t by = kRankZero;  // serial of the client that has set it
    uint64_t serial = 0;      // unique; newer values have larger ones
  };
  static constexpr uint64_t kRankZero = 0;
  using Clients = std::map<int, Client>;

  // These require `mutex_`.
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

  // These run on the loop's thread.
  void on_refused(const Gate::Refusal& refusal);
  void admit(Fd fd);
  void on_ready(int number, uint32_t events);

  EventLoop loop_;  // the first member, so that it outlives what it watches
  const size_t most_bytes_, most_clients_;
  mutable std::mutex mutex_;
  bool closing_ = false;
  std::map<std::string, Kept> values_;
  size_t kept_bytes_ = 0;  // keys and values that other ranks have set
  Clients clients_;
  uint64_t serial_ = kRankZero;                      // the last one given
  std::map<std::string, std::vector<int>> waiting_;  // descriptors of clients, by key
  const std::string* awaited_here_ = nullptr;        // the key for which rank 0 waits
  std::condition_variable set_here_;
  size_t reading_bytes_ = 0;  // memory of incomplete requests
  std::string remark_;
  uint64_t refusals_ = 0;  // used by the loop's thread alone
  std::vector<std::unique_ptr<Gate>> gates_;
};

}  // namespace ringcoll
