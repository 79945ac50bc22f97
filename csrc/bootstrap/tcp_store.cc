// tcp://host:port: rank 0 keeps the values and serves the others from a thread of its own. Requests
// come over connections that have proven to know the secret, and are answered one after another. A
// wait is answered when its key is set, or else when the next request of the same rank comes: who
// has waited for long enough says so by asking for something else.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/long_wait.h"
#include "bootstrap/gate.h"
#include "bootstrap/store.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr uint32_t kTcpStoreMagic = 0x54534352;  // "RCST"
constexpr uint32_t kStoreChannel = UINT32_MAX;
constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);
constexpr uint64_t kRefusalsLogged = 8;
constexpr double kAnswerSeconds = 30;  // for what has begun to come
// Of all values, and as many of requests that are being read: without a secret of the job's own
// anybody who reaches the port can write.
constexpr size_t kMostStoredBytes = 2 * kMaxValueBytes;

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

// The same for every store: what a store is for is said by its address.
const GroupId& store_group() {
  static const GroupId group = make_group_id("ringcoll store");
  return group;
}

template <typename T>
void append(std::string* bytes, const T& message) {
  bytes->append(reinterpret_cast<const char*>(&message), sizeof message);
}

/// Shared by the answers to all ranks: the outcome of a round has something of each of them.
using Value = std::shared_ptr<const std::string>;

struct Answer {
  Status status;
  Value value;  // null: none
};

/// The values, and the loop that serves them.
class Server {
 public:
  Server(const std::vector<Address>& addresses, const std::string& secret, Rank size)
      : loop_("ringcoll-store") {
    for (const Address& address : addresses)
      gates_.push_back(std::make_unique<Gate>(address, loop_));
    for (auto& gate : gates_)
      gate->open(
          {secret, 0, 1, size - 1, store_group()},
          [this](const Identity&, Fd fd) { admit(std::move(fd)); },
          [this](const Gate::Refusal& refusal) { on_refused(refusal); });
  }
  ~Server() {
    gates_.clear();
    {
      std::lock_guard lock(mutex_);
      closing_ = true;  // callbacks leave `clients_` alone from here on
    }
    for (auto& [fd, client] : clients_) loop_.forget(fd);
    loop_.settle();
  }

  Answer serve(Operation operation, const std::string& key, const std::string& value) {
    std::lock_guard lock(mutex_);
    return serve_locked(operation, key, value);
  }
  /// Null if it is not set until then. One thread at a time.
  Value wait(const std::string& key, Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto found = values_.end();
    awaited_here_ = &key;
    set_here_.wait_for(lock, deadline.left(), [&] {
      found = values_.find(key);
      return found != values_.end();
    });
    awaited_here_ = nullptr;
    return found == values_.end() ? nullptr : found->second;
  }
  std::string remark() const {
    std::lock_guard lock(mutex_);
    return remark_;
  }

 private:
  struct Client {
    Fd fd;
    std::string in;
    std::optional<std::string> awaits;  // the key
    Response head{};                    // of the answer that is being sent, value behind it
    Value value;
    size_t sent = 0;
    bool answering = false;
  };

  Answer serve_locked(Operation operation, const std::string& key, const std::string& value) {
    auto found = values_.find(key);
    switch (operation) {
      case Operation::kGet:
      case Operation::kWait:
        if (found == values_.end()) return {Status::kAbsent, {}};
        return {Status::kDone, found->second};
      case Operation::kRemove:
        if (found == values_.end()) return {Status::kDone, {}};
        kept_bytes_ -= key.size() + found->second->size();
        values_.erase(found);
        return {Status::kDone, {}};
      case Operation::kSet:
        if (found != values_.end())
          return {*found->second == value ? Status::kDone : Status::kConflict, {}};
        if (kept_bytes_ + key.size() + value.size() > kMostStoredBytes) return {Status::kFull, {}};
        found = values_.emplace(key, std::make_shared<const std::string>(value)).first;
        kept_bytes_ += key.size() + value.size();
        tell_who_waits(key, found->second);
        return {Status::kDone, {}};
    }
    throw Error(Code::kInternal, "an operation that a store does not have");
  }

  void tell_who_waits(const std::string& key, const Value& value) {
    if (awaited_here_ && *awaited_here_ == key) set_here_.notify_one();
    auto waiting = waiting_.extract(key);
    if (!waiting) return;
    for (int number : waiting.mapped()) {
      Client& client = clients_.find(number)->second;
      client.awaits.reset();
      // Gone: the loop finds it so, too, and forgets it.
      if (!answer(client, {Status::kDone, value})) ::shutdown(number, SHUT_RDWR);
    }
  }

  void stop_waiting(Client& client) {
    auto waiting = waiting_.find(*client.awaits);
    std::erase(waiting->second, client.fd.get());
    if (waiting->second.empty()) waiting_.erase(waiting);
    client.awaits.reset();
  }

  void on_refused(const Gate::Refusal& refusal) {
    std::string text =
        fmt::format("{}, which says it is rank {}, was turned away: {}", refusal.peer.text(),
                    refusal.claimed.from, explain(refusal.verdict));
    // Not an error of this job by itself: anybody can knock. Enough is logged to be seen, not to
    // fill a disk.
    if (refusals_++ < kRefusalsLogged) log_warning("store of rank 0: {}", text);
    std::lock_guard lock(mutex_);
    remark_ = std::move(text);
  }

  void admit(Fd fd) {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    int number = fd.get();
    clients_[number].fd = std::move(fd);
    loop_.watch(number, [this, number](uint32_t events) { on_ready(number, events); });
  }

  void on_ready(int number, uint32_t events) {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    auto entry = clients_.find(number);
    if (is_served(entry->second, events)) return;
    loop_.forget(number);
    reading_bytes_ -= entry->second.in.size();
    if (entry->second.awaits) stop_waiting(entry->second);
    clients_.erase(entry);
  }

  // False: the client is gone, or does not speak the protocol, or asks for more than there is.
  bool is_served(Client& client, uint32_t events) {
    try {
      if ((events & EPOLLOUT) && !flush(client)) return false;
      if ((events & ~EPOLLOUT) != 0 && !read_some(client)) return false;
      while (!client.answering) {
        Request request{};
        size_t bytes = 0;
        if (!find_request(client, &request, &bytes)) return false;
        if (bytes == 0) return true;
        if (client.awaits) {
          stop_waiting(client);
          if (!answer(client, {Status::kAbsent, {}})) return false;
        } else if (!serve_request(client, request, bytes)) {
          return false;
        }
      }
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  bool read_some(Client& client) {
    std::array<char, 65536> buffer;
    ssize_t got = recv(client.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    auto bytes = static_cast<size_t>(got);
    if (bytes == 0 || reading_bytes_ + bytes > kMostStoredBytes) return false;
    client.in.append(buffer.data(), bytes);
    reading_bytes_ += bytes;
    return true;
  }

  // *bytes: of the whole request that has come, 0 if none has. False: it makes no sense.
  static bool find_request(const Client& client, Request* request, size_t* bytes) {
    if (client.in.size() < sizeof *request) return true;
    std::memcpy(request, client.in.data(), sizeof *request);
    if (request->magic != kTcpStoreMagic || request->key_bytes > kMaxKeyBytes ||
        request->value_bytes > kMaxValueBytes || request->operation < 1 || request->operation > 4)
      return false;
    size_t whole = sizeof *request + request->key_bytes + request->value_bytes;
    if (client.in.size() >= whole) *bytes = whole;
    return true;
  }

  bool serve_request(Client& client, const Request& request, size_t bytes) {
    auto operation = static_cast<Operation>(request.operation);
    // Only a wait need not be answered before the next request.
    if (client.in.size() > bytes && operation != Operation::kWait) return false;
    std::string key = client.in.substr(sizeof request, request.key_bytes);
    Answer found = serve_locked(
        operation, key, client.in.substr(sizeof request + request.key_bytes, request.value_bytes));
    reading_bytes_ -= bytes;
    client.in.erase(0, bytes);
    if (client.in.empty()) client.in = {};  // and its memory
    if (operation != Operation::kWait || found.status == Status::kDone)
      return answer(client, std::move(found));
    waiting_[key].push_back(client.fd.get());
    client.awaits = std::move(key);
    return true;
  }

  bool answer(Client& client, Answer answer) {
    client.head = {kTcpStoreMagic, static_cast<uint32_t>(answer.status),
                   answer.value ? static_cast<uint32_t>(answer.value->size()) : 0, 0};
    client.value = std::move(answer.value);
    client.sent = 0;
    client.answering = true;
    return flush(client);
  }

  // What the socket takes of the answer.
  bool flush(Client& client) {
    size_t value_bytes = client.head.value_bytes, head_left = 0;
    if (client.sent < sizeof client.head) head_left = sizeof client.head - client.sent;
    size_t value_sent = client.sent + head_left - sizeof client.head;
    auto* head = reinterpret_cast<char*>(&client.head) + sizeof client.head - head_left;
    iovec parts[2] = {{head, head_left}, {}};
    if (value_bytes > 0)
      parts[1] = {const_cast<char*>(client.value->data()) + value_sent, value_bytes - value_sent};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t sent = ::sendmsg(client.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    client.sent += static_cast<size_t>(std::max<ssize_t>(sent, 0));
    client.answering = client.sent < sizeof client.head + value_bytes;
    if (!client.answering) client.value.reset();
    loop_.also_writable(client.fd.get(), client.answering);
    return true;
  }

  EventLoop loop_;  // the first, so that it outlives what is watched on it
  mutable std::mutex mutex_;
  bool closing_ = false;
  std::map<std::string, Value> values_;
  size_t kept_bytes_ = 0;  // of keys and values
  std::map<int, Client> clients_;
  std::map<std::string, std::vector<int>> waiting_;  // their descriptors, by key
  const std::string* awaited_here_ = nullptr;        // by rank 0
  std::condition_variable set_here_;
  size_t reading_bytes_ = 0;  // of requests that are not whole yet
  std::string remark_;
  uint64_t refusals_ = 0;  // on the loop's thread
  std::vector<std::unique_ptr<Gate>> gates_;
};

void check_set(Status status, const std::string& store, const std::string& key) {
  check(status != Status::kFull, Code::kTransport,
        "{}: it has no room for \"{}\": it keeps at most {} bytes, which no job needs. Does "
        "something else write to it? With RINGCOLL_SECRET only this job can",
        store, key, kMostStoredBytes);
  check(status == Status::kDone, Code::kInvalidArgument,
        "{}: \"{}\" is set already, to another value", store, key);
}

/// Rank 0: the values are here.
class ServingStore : public Store {
 public:
  ServingStore(std::string name, std::unique_ptr<Server> server)
      : name_(std::move(name)), server_(std::move(server)) {}

  void set(const std::string& key, const std::string& value, Deadline) override {
    check_set(server_->serve(Operation::kSet, key, value).status, name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline) override {
    Answer answer = server_->serve(Operation::kGet, key, "");
    if (answer.status == Status::kAbsent) return {};
    return *answer.value;
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    for (;;) {
      if (Value value = server_->wait(key, Deadline(std::min(kLook, deadline.left()))))
        return *value;
      if (deadline.passed()) return {};
      look();
    }
  }
  void remove(const std::string& key, Deadline) override {
    server_->serve(Operation::kRemove, key, "");
  }
  const std::string& name() const override { return name_; }
  std::string remark() const override { return server_->remark(); }

 private:
  std::string name_;
  std::unique_ptr<Server> server_;
};

/// The other ranks: a connection to it.
class ClientStore : public Store {
 public:
  ClientStore(std::string name, Fd fd) : name_(std::move(name)), fd_(std::move(fd)) {}

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    check_set(request(Operation::kSet, key, value, deadline).status, name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    Received received = request(Operation::kGet, key, "", deadline);
    if (received.status == Status::kAbsent) return {};
    return std::move(received.value);
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    if (awaited_ != key) {
      begin(Operation::kWait, key, "", Deadline(seconds(kAnswerSeconds)));
      awaited_ = key;
    }
    for (;;) {
      pollfd entry{fd_.get(), POLLIN, 0};
      ::poll(&entry, 1, Deadline(std::min(kLook, deadline.left())).left_ms());
      if (entry.revents != 0) return receive_awaited(Deadline(seconds(kAnswerSeconds)));
      // Even who has no time to wait is told what is set.
      if (deadline.passed()) return try_get(key, Deadline(seconds(kAnswerSeconds)));
      look();
    }
  }
  void remove(const std::string& key, Deadline deadline) override {
    request(Operation::kRemove, key, "", deadline);
  }
  const std::string& name() const override { return name_; }

 private:
  struct Received {
    Status status;
    std::string value;
  };

  Received request(Operation operation, const std::string& key, const std::string& value,
                   Deadline deadline) {
    begin(operation, key, value, deadline);
    return receive(deadline);
  }

  std::optional<std::string> receive_awaited(Deadline deadline) {
    awaited_.clear();
    Received received = receive(deadline);
    if (received.status == Status::kAbsent) return {};
    return std::move(received.value);
  }

  // A request ends the wait before it, whose answer comes first. It may bring the value: whoever
  // wants it still asks again.
  void begin(Operation operation, const std::string& key, const std::string& value,
             Deadline deadline) {
    send(operation, key, value, deadline);
    if (!awaited_.empty()) receive_awaited(deadline);
  }

  void send(Operation operation, const std::string& key, const std::string& value,
            Deadline deadline) {
    check(key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes, Code::kInvalidArgument,
          "{}: a key of {} and a value of {} bytes; {} and {} are allowed", name_, key.size(),
          value.size(), kMaxKeyBytes, kMaxValueBytes);
    std::string message;
    append(&message,
           Request{kTcpStoreMagic, static_cast<uint32_t>(operation),
                   static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size())});
    message += key + value;
    talk([&](const std::string& link) {
      send_all(fd_.get(), message.data(), message.size(), deadline, link);
    });
  }

  Received receive(Deadline deadline) {
    Received received{Status::kAbsent, {}};
    talk([&](const std::string& link) {
      Response response;
      recv_all(fd_.get(), &response, sizeof response, deadline, link);
      check(response.magic == kTcpStoreMagic && response.value_bytes <= kMaxValueBytes,
            Code::kTransport, "{}: an answer that makes no sense", link);
      received = {static_cast<Status>(response.status), std::string(response.value_bytes, 0)};
      recv_all(fd_.get(), received.value.data(), received.value.size(), deadline, link);
    });
    return received;
  }

  template <typename Exchange>
  void talk(Exchange&& exchange) {
    try {
      exchange(fmt::format("{}, kept by rank 0", name_));
    } catch (const Error& error) {
      fd_.reset();  // an answer that is still under way must not be taken for the next
      awaited_.clear();
      if (error.code() == Code::kTimeout) throw;
      throw Error(error.code(), fmt::format("{}; rank 0 has ended, or has given up", error.what()),
                  0);
    }
  }

  std::string name_;
  Fd fd_;
  std::string awaited_;  // the key of a wait that has not been answered
};

// Rank 0 may come later than the others: refused is not final before the deadline.
Fd reach(const std::string& name, const std::vector<Address>& addresses, const std::string& secret,
         Rank rank, Deadline deadline) {
  std::string cause;
  Duration pause = kFirstPause;
  auto start = Clock::now();
  LongWait long_wait(start);
  for (size_t i = 0;; i++) {
    int error = 0;
    Fd fd = try_connect(addresses[i % addresses.size()], deadline, &error);
    cause = errno_text("connect", error);
    if (fd) {
      Verdict verdict =
          prove(fd.get(), secret, {rank, 0, kStoreChannel, store_group()}, deadline, name);
      if (verdict == Verdict::kAccepted) return fd;
      cause = explain(verdict);
      check(verdict == Verdict::kClosed,
            verdict == Verdict::kWrongSecret ? Code::kInvalidArgument : Code::kTransport,
            "{}: rank {} connects to rank 0: {}", name, rank, cause);
    }
    check(!deadline.passed(), Code::kTransport,
          "{}: {}; tried for {:.1f} s. Rank 0 of the job serves this store: has it started, and is "
          "the address one of its host?",
          name, cause, to_seconds(Clock::now() - start));
    long_wait.tell(
        Clock::now(), [&] { return fmt::format("rank {}", rank); },
        [&] { return fmt::format("the start at {}", name); },
        [&] { return fmt::format("rank 0 ({})", cause); });
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

// Each once, for a name may stand twice in /etc/hosts. It may have addresses of other hosts, too,
// which cannot be bound here; if it has no other, listening there says why.
std::vector<Address> of_this_host(const std::vector<Address>& addresses) {
  std::vector<Address> own;
  for (const Address& address : addresses)
    if (std::ranges::count(own, address.text(), &Address::text) == 0 && is_own_address(address))
      own.push_back(address);
  return own.empty() ? addresses : own;
}

}  // namespace

std::unique_ptr<Store> serve_tcp_store(const std::string& name,
                                       const std::vector<Address>& addresses,
                                       const std::string& secret, Rank size) {
  try {
    return std::make_unique<ServingStore>(
        name, std::make_unique<Server>(of_this_host(addresses), secret, size));
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}: {}; rank 0 serves this store, so the address must be one of its "
                            "host and the port free: another job may use it, or two processes "
                            "claim rank 0",
                            name, error.what()),
                0);
  }
}

std::unique_ptr<Store> open_tcp_store(const std::string& rest, const std::string& secret, Rank rank,
                                      Rank size, Deadline deadline) {
  std::string name = "tcp://" + rest;
  HostPort where = split_host_port(rest);
  check(where.port != 0, Code::kInvalidArgument, "{}: a port is needed", name);
  std::vector<Address> addresses = resolve(where);
  if (rank == 0) return serve_tcp_store(name, addresses, secret, size);
  return std::make_unique<ClientStore>(name, reach(name, addresses, secret, rank, deadline));
}

}  // namespace ringcoll
