#include "store/tcp_store_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr uint64_t kRefusalsLogged = 8;
// Memory of an entry, beside its key and value.
constexpr size_t kEntryBytes = 256;

}  // namespace

const GroupId& store_group() {
  static const GroupId group = make_group_id("ringcoll store");
  return group;
}

TcpStoreServer::TcpStoreServer(const std::vector<Address>& addresses, const std::string& secret,
                               Rank size)
    : loop_("ringcoll-store", EventLoop::Thread::kIfThereIsOne),
      most_bytes_(most_bytes(size)),
      most_clients_(most_clients(size)) {
  for (const Address& address : addresses) gates_.push_back(std::make_unique<Gate>(address, loop_));
  for (auto& gate : gates_)
    gate->open(
        {secret, 0, 1, size - 1, store_group()},
        [this](const Identity&, Fd fd) { admit(std::move(fd)); },
        [this](const Gate::Refusal& refusal) { on_refused(refusal); });
}

TcpStoreServer::~TcpStoreServer() {
  gates_.clear();
  {
    std::lock_guard lock(mutex_);
    closing_ = true;  // callbacks do not touch `clients_` from here on
  }
  for (auto& [fd, client] : clients_) loop_.forget(fd);
  loop_.settle();
}

TcpStoreServer::Answer TcpStoreServer::serve(Operation operation, const std::string& key,
                                             const std::string& value) {
  if (loop_.threadless()) loop_.turn(Duration::zero());
  std::lock_guard lock(mutex_);
  return apply(operation, key, value, kRankZero);
}

Value TcpStoreServer::wait(const std::string& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  auto is_set = [&] {
    found = values_.find(key);
    return found != values_.end();
  };
  awaited_here_ = &key;
  if (!loop_.threadless()) set_here_.wait_for(lock, deadline.left(), is_set);
  while (loop_.threadless() && !is_set() && !deadline.passed()) {
    lock.unlock();
    loop_.turn(deadline.left());
    lock.lock();
  }
  awaited_here_ = nullptr;
  return found == values_.end() ? nullptr : found->second.value;
}

std::string TcpStoreServer::remark() const {
  std::lock_guard lock(mutex_);
  return remark_;
}

// ---- Values ----

size_t TcpStoreServer::bytes_of(const std::string& key, const Kept& kept) {
  return kEntryBytes + key.size() + kept.value->capacity();
}

TcpStoreServer::Answer TcpStoreServer::apply(Operation operation, const std::string& key,
                                             std::string value, uint64_t by) {
  auto found = values_.find(key);
  switch (operation) {
    case Operation::kGet:
    case Operation::kWait:
      if (found == values_.end()) return {Status::kAbsent, {}};
      return {Status::kDone, found->second.value};
    case Operation::kRemove:
      if (found != values_.end()) erase_value(found);
      return {Status::kDone, {}};
    case Operation::kSet: {
      if (found != values_.end()) {
        if (*found->second.value != value) return {Status::kConflict, {}};
        // A client that was dropped and has reconnected owns the value now.
        if (found->second.by != kRankZero && by != kRankZero) found->second.by = by;
        return {Status::kDone, {}};
      }
      Kept kept{std::make_shared<const std::string>(std::move(value)), by, ++serial_};
      size_t bytes = bytes_of(key, kept);
      if (by != kRankZero && !make_room(bytes, by)) return {Status::kFull, {}};
      if (by != kRankZero) kept_bytes_ += bytes;
      Value told = kept.value;
      values_.emplace(key, std::move(kept));
      tell_who_waits(key, told);
      return {Status::kDone, {}};
    }
  }
  throw Error(Code::kInternal, "an operation that a store does not have");
}

// No rank needs a removed value. Clients to which it is still being sent are closed, since they
// would keep it in memory.
void TcpStoreServer::erase_value(std::map<std::string, Kept>::iterator entry) {
  for (auto& [number, client] : clients_)
    if (client.value == entry->second.value) ::shutdown(number, SHUT_RDWR);  // the loop drops it
  if (entry->second.by != kRankZero) kept_bytes_ -= bytes_of(entry->first, entry->second);
  values_.erase(entry);
}

// Bytes of each connected client: its values and its incomplete request.
std::map<uint64_t, size_t> TcpStoreServer::bytes_by_client() const {
  std::map<uint64_t, size_t> bytes;
  for (const auto& [number, client] : clients_) bytes[client.serial] = client.in.capacity();
  for (const auto& [key, kept] : values_)
    if (auto client = bytes.find(kept.by); client != bytes.end())
      client->second += bytes_of(key, kept);
  return bytes;
}

// Makes room for `bytes` more bytes of client `by`. False: no client has more than this one.
bool TcpStoreServer::make_room(size_t bytes, uint64_t by) {
  while (kept_bytes_ + reading_bytes_ + bytes > most_bytes_) {
    if (drop_value_of_one_who_is_gone()) continue;
    auto all = bytes_by_client();
    all[by] += bytes;
    auto most = std::ranges::max_element(all, {}, [](const auto& one) { return one.second; });
    if (most->first == by) return false;
    for (auto entry = values_.begin(); entry != values_.end();) {
      auto next = std::next(entry);
      if (entry->second.by == most->first) erase_value(entry);
      entry = next;
    }
    drop(std::ranges::find(clients_, most->first,
                           [](const auto& entry) { return entry.second.serial; }));
  }
  return true;
}

bool TcpStoreServer::drop_value_of_one_who_is_gone() {
  std::map<uint64_t, size_t> here = bytes_by_client();
  auto oldest = values_.end();
  for (auto entry = values_.begin(); entry != values_.end(); ++entry) {
    const Kept& kept = entry->second;
    if (kept.by == kRankZero || here.contains(kept.by)) continue;
    if (oldest == values_.end() || kept.serial < oldest->second.serial) oldest = entry;
  }
  if (oldest == values_.end()) return false;
  erase_value(oldest);
  return true;
}

void TcpStoreServer::tell_who_waits(const std::string& key, const Value& value) {
  if (awaited_here_ && *awaited_here_ == key) set_here_.notify_one();
  auto waiting = waiting_.extract(key);
  if (!waiting) return;
  for (int number : waiting.mapped()) {
    Client& client = clients_.find(number)->second;
    client.awaits.reset();
    // The client is gone; the loop notices that, too, and drops it.
    if (!answer(client, {Status::kDone, value})) ::shutdown(number, SHUT_RDWR);
  }
}

void TcpStoreServer::stop_waiting(Client& client) {
  auto waiting = waiting_.find(*client.awaits);
  std::erase(waiting->second, client.fd.get());
  if (waiting->second.empty()) waiting_.erase(waiting);
  client.awaits.reset();
}

// ---- Connections ----

void TcpStoreServer::on_refused(const Gate::Refusal& refusal) {
  std::string text =
      fmt::format("{}, which says it is rank {}, was turned away: {}", refusal.peer.text(),
                  refusal.claimed.from, explain(refusal.verdict));
  // Any process can connect, so this is no error of the job. A few are logged, but not so many that
  // they fill a disk.
  if (refusals_++ < kRefusalsLogged) log_warning("store of rank 0: {}", text);
  std::lock_guard lock(mutex_);
  remark_ = std::move(text);
}

void TcpStoreServer::admit(Fd fd) {
  std::lock_guard lock(mutex_);
  if (closing_) return;
  make_room_for_a_client();
  int number = fd.get();
  Client& client = clients_[number];
  client.fd = std::move(fd);
  client.serial = ++serial_;
  reading_bytes_ += client.in.capacity();
  try {
    loop_.watch(number, [this, number](uint32_t events) { on_ready(number, events); });
  } catch (const Error& error) {
    log_warning("store of rank 0: a connection is dropped: {}", error.what());
    drop(clients_.find(number));
  }
}

// Drops the oldest client that has made no request yet. If all have, drops the oldest that is not
// in a wait, where ranks spend nearly all of their time, else the oldest of all.
void TcpStoreServer::make_room_for_a_client() {
  if (clients_.size() < most_clients_) return;
  drop(std::ranges::min_element(clients_, {}, [](const auto& entry) {
    const Client& client = entry.second;
    return std::tuple(client.asked, client.awaits.has_value(), client.serial);
  }));
}

void TcpStoreServer::drop(Clients::iterator entry) {
  loop_.forget(entry->first);
  reading_bytes_ -= entry->second.in.capacity();
  if (entry->second.awaits) stop_waiting(entry->second);
  clients_.erase(entry);
}

void TcpStoreServer::on_ready(int number, uint32_t events) {
  std::lock_guard lock(mutex_);
  if (closing_) return;
  auto entry = clients_.find(number);
  if (entry != clients_.end() && !is_served(entry->second, events)) drop(entry);
}

// False: the client is gone, does not speak the protocol, or needs more memory than there is.
bool TcpStoreServer::is_served(Client& client, uint32_t events) {
  try {
    if ((events & EPOLLOUT) && !flush(client)) return false;
    if ((events & ~EPOLLOUT) != 0 && !read_some(client)) return false;
    while (!client.answering) {
      Request request{};
      size_t bytes = 0;
      if (!find_request(client, &request, &bytes)) return false;
      if (bytes == 0) return true;
      client.asked = true;
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

// Length of the request that begins with `in` and continues with `more`; 0: not known yet.
size_t TcpStoreServer::whole_bytes(std::string_view in, std::string_view more) {
  Request request{};
  std::string head(in.substr(0, sizeof request));
  head += more.substr(0, sizeof request - head.size());
  if (head.size() < sizeof request) return 0;
  std::memcpy(&request, head.data(), sizeof request);
  return sizeof request + request.key_bytes + request.value_bytes;
}

bool TcpStoreServer::read_some(Client& client) {
  std::array<char, 65536> buffer;
  ssize_t got = recv(client.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  auto bytes = static_cast<size_t>(got);
  if (bytes == 0) return false;
  if (client.refused > 0) return refuse(client, bytes);
  size_t before = client.in.capacity(), wanted = client.in.size() + bytes;
  if (wanted > before) {
    size_t whole = whole_bytes(client.in, {buffer.data(), bytes});
    // Grows by half, but not beyond the request, since reserved memory counts.
    wanted = std::max(wanted, std::min(whole, wanted + client.in.size() / 2));
    if (!make_room(wanted - before, client.serial)) {
      client.refused = whole - std::min(whole, client.in.size());
      reading_bytes_ -= before;
      client.in = {};
      reading_bytes_ += client.in.capacity();
      return refuse(client, bytes);
    }
    std::string larger;  // a new string, since reserve() of one with contents may double it
    larger.reserve(wanted);
    client.in = std::move(larger.append(client.in));
    reading_bytes_ += client.in.capacity() - before;
  }
  client.in.append(buffer.data(), bytes);
  return true;
}

// Skips `got` bytes of a request that has no room. It is answered at its end, for the client reads
// the answer only then.
bool TcpStoreServer::refuse(Client& client, size_t got) {
  if (got > client.refused) return false;
  client.refused -= got;
  return client.refused > 0 || answer(client, {Status::kFull, {}});
}

// Sets *bytes to the length of a complete request, or leaves it if there is none. False: invalid
// data.
bool TcpStoreServer::find_request(const Client& client, Request* request, size_t* bytes) const {
  if (client.in.size() < sizeof *request) return true;
  std::memcpy(request, client.in.data(), sizeof *request);
  if (request->magic != kTcpStoreMagic || request->key_bytes > kMaxKeyBytes ||
      request->value_bytes > std::min(most_bytes_, kMaxValueBytes) || request->operation < 1 ||
      request->operation > 4)
    return false;
  size_t whole = sizeof *request + request->key_bytes + request->value_bytes;
  if (client.in.size() >= whole) *bytes = whole;
  return true;
}

bool TcpStoreServer::serve_request(Client& client, const Request& request, size_t bytes) {
  auto operation = static_cast<Operation>(request.operation);
  // Only a wait may be followed by another request before it is answered.
  if (client.in.size() > bytes && operation != Operation::kWait) return false;
  std::string key = client.in.substr(sizeof request, request.key_bytes);
  reading_bytes_ -= client.in.capacity();
  std::string all = std::exchange(client.in, {});
  client.in = all.substr(bytes);  // the request after a wait
  reading_bytes_ += client.in.capacity();
  all.erase(0, sizeof request + request.key_bytes);
  all.resize(request.value_bytes);
  Answer found = apply(operation, key, std::move(all), client.serial);
  if (operation != Operation::kWait || found.status == Status::kDone)
    return answer(client, std::move(found));
  waiting_[key].push_back(client.fd.get());
  client.awaits = std::move(key);
  return true;
}

bool TcpStoreServer::answer(Client& client, Answer answer) {
  client.head = {kTcpStoreMagic, static_cast<uint32_t>(answer.status),
                 answer.value ? static_cast<uint32_t>(answer.value->size()) : 0, 0};
  client.value = std::move(answer.value);
  client.sent = 0;
  client.answering = true;
  return flush(client);
}

// Sends as much of the answer as the socket takes.
bool TcpStoreServer::flush(Client& client) {
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

}  // namespace ringcoll
