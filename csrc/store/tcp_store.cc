// tcp://host:port: rank 0 keeps the values and serves the others from a thread of its own. Clients
// prove that they know the secret when they connect. Requests of a client are answered one after
// another. A wait is answered when its key is set, or when the next request of the same client
// comes, which ends the wait.
#include <poll.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/long_wait.h"
#include "net/socket.h"
#include "store/store.h"
#include "store/tcp_store_server.h"

namespace ringcoll {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);
constexpr double kAnswerSeconds = 30;  // for the answer to a request
// Rank 0 closes connections when strangers have too many. A rank that was taken for a stranger
// reconnects, at most this often for one request.
constexpr int kMostReturns = 50;

void check_set(Status status, const std::string& store, const std::string& key) {
  check(status != Status::kFull, Code::kTransport,
        "{}: the store has no room for \"{}\". It has as much as any job needs, so another program "
        "may write to it; with RINGCOLL_SECRET only this job can",
        store, key);
  check(status == Status::kDone, Code::kInvalidArgument,
        "{}: \"{}\" is set already, to another value", store, key);
}

/// The store of rank 0, in whose process the values are.
class ServingStore : public Store {
 public:
  ServingStore(std::string name, std::unique_ptr<TcpStoreServer> server)
      : name_(std::move(name)), server_(std::move(server)) {}

  void set(const std::string& key, const std::string& value, Deadline) override {
    check_set(server_->serve(Operation::kSet, key, value).status, name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline) override {
    TcpStoreServer::Answer answer = server_->serve(Operation::kGet, key, "");
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
  std::optional<Error> unable() const override { return server_->threadless(); }

 private:
  std::string name_;
  std::unique_ptr<TcpStoreServer> server_;
};

/// The store of the other ranks: a connection to rank 0.
class ClientStore : public Store {
 public:
  ClientStore(std::string name, std::vector<Address> addresses, std::string secret, Rank rank,
              Rank size)
      : name_(std::move(name)),
        addresses_(std::move(addresses)),
        secret_(std::move(secret)),
        rank_(rank),
        most_bytes_(std::min(kMaxValueBytes, TcpStoreServer::most_bytes(size))) {}

  /// Connects. Rank 0 may start later than the others, so a refused connection is retried until the
  /// deadline.
  void reach(Deadline deadline);

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    check(key.size() <= kMaxKeyBytes && value.size() <= most_bytes_, Code::kInvalidArgument,
          "{}: a key of {} and a value of {} bytes; {} and {} are allowed", name_, key.size(),
          value.size(), kMaxKeyBytes, most_bytes_);
    check_set(request(Operation::kSet, key, value, deadline).status, name_, key);
    set_[key] = value;
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    return value_of(request(Operation::kGet, key, "", deadline));
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override;
  void remove(const std::string& key, Deadline deadline) override {
    set_.erase(key);
    request(Operation::kRemove, key, "", deadline);
  }
  const std::string& name() const override { return name_; }

 private:
  struct Received {
    Status status;
    std::string value;
  };
  static std::optional<std::string> value_of(Received received) {
    if (received.status == Status::kAbsent) return {};
    return std::move(received.value);
  }

  Fd try_reach(const Address& address, Deadline deadline, std::string* cause);
  bool come_again(Deadline deadline);
  bool set_again(Deadline deadline);
  template <typename Ask>
  auto asked(Deadline deadline, Ask&& ask);
  Received request(Operation operation, const std::string& key, const std::string& value,
                   Deadline deadline);
  std::optional<std::string> receive_awaited(Deadline deadline) {
    awaited_.clear();
    return value_of(receive(deadline));
  }
  void begin(Operation operation, const std::string& key, const std::string& value,
             Deadline deadline);
  void send(Operation operation, const std::string& key, const std::string& value,
            Deadline deadline);
  Received receive(Deadline deadline);
  template <typename Exchange>
  void talk(Exchange&& exchange);

  const std::string name_;
  const std::vector<Address> addresses_;
  const std::string secret_;
  const Rank rank_;
  const size_t most_bytes_;
  Fd fd_;
  std::string awaited_;                     // the key of a wait that has not been answered
  std::map<std::string, std::string> set_;  // what this rank has set, in case rank 0 drops it
};

// Returns an empty Fd, and sets `*cause`, if a later attempt may succeed. Throws other failures.
Fd ClientStore::try_reach(const Address& address, Deadline deadline, std::string* cause) {
  int error = 0;
  Fd fd = try_connect(address, deadline, &error);
  *cause = errno_text("connect", error);
  if (!fd) return {};
  Identity identity{rank_, 0, kStoreChannel, store_group()};
  Verdict verdict = prove(fd.get(), secret_, identity, deadline, name_);
  if (verdict == Verdict::kAccepted) return fd;
  *cause = explain(verdict);
  check(verdict == Verdict::kClosed,
        verdict == Verdict::kWrongSecret ? Code::kInvalidArgument : Code::kTransport,
        "{}: rank {} connects to rank 0: {}", name_, rank_, *cause);
  return {};
}

void ClientStore::reach(Deadline deadline) {
  std::string cause;
  Duration pause = kFirstPause;
  auto start = Clock::now();
  LongWait long_wait(start);
  for (size_t i = 0;; i++) {
    fd_ = try_reach(addresses_[i % addresses_.size()], deadline, &cause);
    if (fd_) return;
    check(!deadline.passed(), Code::kTransport,
          "{}: {}; tried for {:.1f} s. Rank 0 of the job serves this store: has it started, and is "
          "the address one of its host?",
          name_, cause, to_seconds(Clock::now() - start));
    long_wait.tell(
        Clock::now(), [&] { return fmt::format("rank {}", rank_); },
        [&] { return fmt::format("the start at {}", name_); },
        [&] { return fmt::format("rank 0 ({})", cause); });
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

// Sets all values of this rank again: rank 0 may have removed them as a stranger's. False: rank 0
// has closed the connection again.
bool ClientStore::set_again(Deadline deadline) {
  try {
    for (const auto& [key, value] : set_) {
      begin(Operation::kSet, key, value, deadline);
      receive(deadline);
    }
    return true;
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout) throw;
    return false;
  }
}

// Reconnects. False: rank 0 is gone. As long as it listens it is there, even if strangers keep it
// busy.
bool ClientStore::come_again(Deadline deadline) {
  for (Duration pause = kFirstPause; !deadline.passed();) {
    bool listens = false;
    for (const Address& address : addresses_) {
      std::string cause;
      fd_ = try_reach(address, deadline, &cause);
      listens |= static_cast<bool>(fd_) || cause == explain(Verdict::kClosed);
      if (fd_ && set_again(deadline)) return true;
    }
    if (!listens) return false;
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
  return false;
}

// Runs `ask`, which sends a whole request, again after each reconnection.
template <typename Ask>
auto ClientStore::asked(Deadline deadline, Ask&& ask) {
  for (int returns = 0;; returns++) {
    try {
      return ask();
    } catch (const Error& error) {
      if (error.code() != Code::kTransport || returns == kMostReturns || !come_again(deadline))
        throw Error(error);
    }
  }
}

ClientStore::Received ClientStore::request(Operation operation, const std::string& key,
                                           const std::string& value, Deadline deadline) {
  return asked(deadline, [&] {
    begin(operation, key, value, deadline);
    return receive(deadline);
  });
}

std::optional<std::string> ClientStore::wait(const std::string& key, Deadline deadline) {
  std::optional<std::string> value;
  for (;;) {
    bool answered = asked(Deadline(seconds(kAnswerSeconds)), [&] {
      if (awaited_ != key) begin(Operation::kWait, key, "", Deadline(seconds(kAnswerSeconds)));
      awaited_ = key;
      pollfd entry{fd_.get(), POLLIN, 0};
      ::poll(&entry, 1, Deadline(std::min(kLook, deadline.left())).left_ms());
      if (entry.revents == 0) return false;
      value = receive_awaited(Deadline(seconds(kAnswerSeconds)));
      return true;
    });
    if (answered) return value;
    // A caller without time to wait still gets a value that is set.
    if (deadline.passed()) return try_get(key, Deadline(seconds(kAnswerSeconds)));
    look();
  }
}

// A request ends the wait before it, whose answer comes first. That answer may carry the value,
// which is dropped: a caller that still wants it asks again.
void ClientStore::begin(Operation operation, const std::string& key, const std::string& value,
                        Deadline deadline) {
  send(operation, key, value, deadline);
  if (!awaited_.empty()) receive_awaited(deadline);
}

void ClientStore::send(Operation operation, const std::string& key, const std::string& value,
                       Deadline deadline) {
  Request head{kTcpStoreMagic, static_cast<uint32_t>(operation), static_cast<uint32_t>(key.size()),
               static_cast<uint32_t>(value.size())};
  std::string message(reinterpret_cast<const char*>(&head), sizeof head);
  message += key + value;
  talk([&](const std::string& link) {
    send_all(fd_.get(), message.data(), message.size(), deadline, link);
  });
}

ClientStore::Received ClientStore::receive(Deadline deadline) {
  Received received{Status::kAbsent, {}};
  talk([&](const std::string& link) {
    Response response;
    recv_all(fd_.get(), &response, sizeof response, deadline, link);
    check(response.magic == kTcpStoreMagic && response.value_bytes <= kMaxValueBytes,
          Code::kTransport, "{}: the answer cannot be read", link);
    received = {static_cast<Status>(response.status), std::string(response.value_bytes, 0)};
    recv_all(fd_.get(), received.value.data(), received.value.size(), deadline, link);
  });
  return received;
}

template <typename Exchange>
void ClientStore::talk(Exchange&& exchange) {
  try {
    exchange(fmt::format("{}, kept by rank 0", name_));
  } catch (const Error& error) {
    fd_.reset();  // an answer in flight must not be taken for the next one
    awaited_.clear();
    if (error.code() == Code::kTimeout) throw;
    throw Error(error.code(), fmt::format("{}; rank 0 has ended, or has given up", error.what()),
                0);
  }
}

// The addresses of this host, each once: a name may occur twice in /etc/hosts. Addresses of other
// hosts cannot be bound here. If there are no others, listening reports why.
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
        name, std::make_unique<TcpStoreServer>(of_this_host(addresses), secret, size));
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
  auto store = std::make_unique<ClientStore>(name, addresses, secret, rank, size);
  store->reach(deadline);
  return store;
}

}  // namespace ringcoll
