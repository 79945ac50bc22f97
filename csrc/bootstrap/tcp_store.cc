// tcp://host:port: rank 0 keeps the values and serves the others from a thread of its own. Requests
// come over connections that have proven to know the secret; each is answered before the next is
// read.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/gate.h"
#include "bootstrap/store.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr uint32_t kMagic = 0x54534352;  // "RCST"
constexpr uint32_t kStoreChannel = UINT32_MAX;
constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);
constexpr uint64_t kRefusalsLogged = 8;

enum class Operation : uint32_t { kSet = 1, kGet = 2, kRemove = 3 };
enum class Status : uint32_t { kDone = 1, kAbsent = 2, kConflict = 3 };

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

struct Answer {
  Status status;
  std::string value;
};

/// The values, and the loop that serves them.
class Server {
 public:
  Server(const Address& address, const std::string& secret, Rank size) : loop_("ringcoll-store") {
    gate_ = std::make_unique<Gate>(address, loop_);
    gate_->open(
        {secret, 0, 1, size - 1, store_group()},
        [this](const Identity&, Fd fd) { admit(std::move(fd)); },
        [this](const Gate::Refusal& refusal) { on_refused(refusal); });
  }
  ~Server() {
    gate_.reset();
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
  std::string remark() const {
    std::lock_guard lock(mutex_);
    return remark_;
  }

 private:
  struct Client {
    Fd fd;
    std::string in;
    std::string out;
  };

  Answer serve_locked(Operation operation, const std::string& key, const std::string& value) {
    if (operation == Operation::kSet) {
      auto [entry, added] = values_.try_emplace(key, value);
      return {added || entry->second == value ? Status::kDone : Status::kConflict, ""};
    }
    if (operation == Operation::kRemove) {
      values_.erase(key);
      return {Status::kDone, ""};
    }
    auto found = values_.find(key);
    if (found == values_.end()) return {Status::kAbsent, ""};
    return {Status::kDone, found->second};
  }

  void on_refused(const Gate::Refusal& refusal) {
    std::string text = fmt::format("{}, which says it is rank {}, was turned away: {}",
                                   refusal.peer, refusal.claimed.from, explain(refusal.verdict));
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
    bool good = true;
    if (events & EPOLLOUT) good = flush(entry->second);
    if (good && (events & ~EPOLLOUT)) good = read_requests(entry->second);
    if (good) return;
    loop_.forget(number);
    clients_.erase(entry);
  }

  // False: the client is gone, or does not speak the protocol.
  bool read_requests(Client& client) {
    // An answer that has not left yet: the next request waits in the socket.
    if (!client.out.empty()) return true;
    std::array<char, 65536> buffer;
    ssize_t got = recv(client.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.in.append(buffer.data(), static_cast<size_t>(got));
    Request request;
    if (client.in.size() < sizeof request) return true;
    std::memcpy(&request, client.in.data(), sizeof request);
    if (request.magic != kMagic || request.key_bytes > kMaxKeyBytes ||
        request.value_bytes > kMaxValueBytes || request.operation < 1 || request.operation > 3)
      return false;
    size_t total = sizeof request + request.key_bytes + request.value_bytes;
    if (client.in.size() < total) return true;
    if (client.in.size() > total) return false;  // the next before the answer to this one
    Answer answer = serve_locked(static_cast<Operation>(request.operation),
                                 client.in.substr(sizeof request, request.key_bytes),
                                 client.in.substr(sizeof request + request.key_bytes));
    client.in.clear();
    append(&client.out, Response{kMagic, static_cast<uint32_t>(answer.status),
                                 static_cast<uint32_t>(answer.value.size()), 0});
    client.out += answer.value;
    return flush(client);
  }

  bool flush(Client& client) {
    ssize_t sent =
        send(client.fd.get(), client.out.data(), client.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    client.out.erase(0, static_cast<size_t>(std::max<ssize_t>(sent, 0)));
    loop_.also_writable(client.fd.get(), !client.out.empty());
    return true;
  }

  EventLoop loop_;  // the first, so that it outlives what is watched on it
  mutable std::mutex mutex_;
  bool closing_ = false;
  std::map<std::string, std::string> values_;
  std::map<int, Client> clients_;
  std::string remark_;
  uint64_t refusals_ = 0;  // on the loop's thread
  std::unique_ptr<Gate> gate_;
};

/// Rank 0: the values are here.
class ServingStore : public Store {
 public:
  ServingStore(std::string name, std::unique_ptr<Server> server)
      : name_(std::move(name)), server_(std::move(server)) {}

  void set(const std::string& key, const std::string& value, Deadline) override {
    check(server_->serve(Operation::kSet, key, value).status == Status::kDone,
          Code::kInvalidArgument, "{}: \"{}\" is set already, to another value", name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline) override {
    Answer answer = server_->serve(Operation::kGet, key, "");
    if (answer.status == Status::kAbsent) return {};
    return std::move(answer.value);
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
    check(request(Operation::kSet, key, value, deadline).status == Status::kDone,
          Code::kInvalidArgument, "{}: \"{}\" is set already, to another value", name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    Answer answer = request(Operation::kGet, key, "", deadline);
    if (answer.status == Status::kAbsent) return {};
    return std::move(answer.value);
  }
  void remove(const std::string& key, Deadline deadline) override {
    request(Operation::kRemove, key, "", deadline);
  }
  const std::string& name() const override { return name_; }

 private:
  Answer request(Operation operation, const std::string& key, const std::string& value,
                 Deadline deadline) {
    check(key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes, Code::kInvalidArgument,
          "{}: a key of {} and a value of {} bytes; {} and {} are allowed", name_, key.size(),
          value.size(), kMaxKeyBytes, kMaxValueBytes);
    std::string message;
    append(&message,
           Request{kMagic, static_cast<uint32_t>(operation), static_cast<uint32_t>(key.size()),
                   static_cast<uint32_t>(value.size())});
    message += key + value;
    std::string link = fmt::format("{}, kept by rank 0", name_);
    try {
      send_all(fd_.get(), message.data(), message.size(), deadline, link);
      Response response;
      recv_all(fd_.get(), &response, sizeof response, deadline, link);
      check(response.magic == kMagic && response.value_bytes <= kMaxValueBytes, Code::kTransport,
            "{}: an answer that makes no sense", link);
      Answer answer{static_cast<Status>(response.status), std::string(response.value_bytes, 0)};
      recv_all(fd_.get(), answer.value.data(), answer.value.size(), deadline, link);
      return answer;
    } catch (const Error& error) {
      fd_.reset();  // an answer that is still under way must not be taken for the next
      if (error.code() == Code::kTimeout) throw;
      throw Error(error.code(), fmt::format("{}; rank 0 has ended, or has given up", error.what()),
                  0);
    }
  }

  std::string name_;
  Fd fd_;
};

std::unique_ptr<Server> serve_at(const std::string& name, const std::vector<Address>& addresses,
                                 const std::string& secret, Rank size) {
  for (size_t i = 0;; i++) {
    try {
      return std::make_unique<Server>(addresses[i], secret, size);
    } catch (const Error& error) {
      if (i + 1 < addresses.size()) continue;
      throw Error(error.code(),
                  fmt::format("{}: {}; rank 0 serves this store, so the address must be one of its "
                              "host and the port free: another job may use it, or two processes "
                              "claim rank 0",
                              name, error.what()),
                  0);
    }
  }
}

// Rank 0 may come later than the others: refused is not final before the deadline.
Fd reach(const std::string& name, const std::vector<Address>& addresses, const std::string& secret,
         Rank rank, Deadline deadline) {
  std::string cause;
  Duration pause = kFirstPause;
  auto start = Clock::now();
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
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

}  // namespace

std::unique_ptr<Store> open_tcp_store(const std::string& rest, const std::string& secret, Rank rank,
                                      Rank size, Deadline deadline) {
  std::string name = "tcp://" + rest;
  HostPort where = split_host_port(rest);
  check(where.port != 0, Code::kInvalidArgument, "{}: a port is needed", name);
  std::vector<Address> addresses = resolve(where);
  if (rank == 0)
    return std::make_unique<ServingStore>(name, serve_at(name, addresses, secret, size));
  return std::make_unique<ClientStore>(name, reach(name, addresses, secret, rank, deadline));
}

}  // namespace ringcoll
