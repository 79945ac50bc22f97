#include "comm/lifelines.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr uint32_t kMagic = 0x4e494c52;  // "RLIN"
constexpr uint8_t kVersion = 1;
// Longer texts of errors are cut: a message has to fit into a socket whose peer does not read.
constexpr size_t kMaxTextBytes = 4096;
// A line that closes before anything was said on it may be that of a rank that has failed while it
// made it. So long may the cause take that it tells, or has, by others.
constexpr Duration kCauseGrace = std::chrono::milliseconds(300);

enum class Type : uint8_t { kGoodbye = 1, kPoison = 2, kPing = 3, kPong = 4, kHello = 5 };

// On the wire as it is; text_bytes of text follow.
struct Header {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t text_bytes;
  int32_t code;    // poison: of the error
  int32_t rank;    // poison: whom to blame; pong: whom the sender waits for
  uint64_t token;  // ping, and the pong to it
};
static_assert(sizeof(Header) == 24);

struct Line {
  Fd fd;
  std::string in;           // received, not yet a whole message
  bool heard = false;       // anything at all
  bool goodbye = false;     // the peer has said so
  bool gone = false;        // or its line has closed
  bool mute = false;        // half a message was sent: nothing can follow it
  uint64_t pong_token = 0;  // of the last answer
  Rank pong_waiting_for = kNobody;
};

std::string encode(Type type, int32_t code, Rank rank, uint64_t token, std::string_view text) {
  text = text.substr(0, kMaxTextBytes);
  Header header{
      kMagic, kVersion, static_cast<uint8_t>(type), static_cast<uint16_t>(text.size()), code,
      rank,   token};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes.append(text);
}

std::string encode(const Error& error) {
  return encode(Type::kPoison, static_cast<int32_t>(error.code()), error.rank(), 0, error.what());
}

bool is_sound(const Header& header, Rank size) {
  bool known = header.magic == kMagic && header.version == kVersion && header.type >= 1 &&
               header.type <= 5 && header.rank >= kNobody && header.rank < size;
  if (!known) return false;
  if (static_cast<Type>(header.type) != Type::kPoison) return header.text_bytes == 0;
  return header.text_bytes <= kMaxTextBytes && header.code >= RC_INVALID_ARGUMENT &&
         header.code <= RC_ABORTED;
}

// Never blocks. What a full socket does not take is lost: its peer has not read for a long time,
// and nobody's progress may depend on one that does not.
void send_on(Line& line, const std::string& message) {
  if (!line.fd || line.goodbye || line.mute) return;
  ssize_t sent = ::send(line.fd.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(message.size())) return;
  line.mute = sent > 0;
  // A closed line is noticed, and reported, by who reads it.
  log_debug("a message of {} bytes on a lifeline is lost: {}", message.size(),
            sent < 0 ? errno_text("send", errno) : "the socket is full");
}

}  // namespace

struct Lifelines::State : std::enable_shared_from_this<State> {
  enum class Reply { kPoisoned, kGone, kNoLine, kSilent, kAnswered };

  State(Rank own, Rank ranks, EventLoop& on, std::function<void()> callback,
        std::function<std::string(Rank)> describer, std::atomic<bool>& flag,
        std::atomic<Rank>& waits)
      : rank(own),
        size(ranks),
        loop(on),
        on_poison(std::move(callback)),
        describe(std::move(describer)),
        poisoned(flag),
        waiting_for(waits),
        lines(ranks) {}

  const Rank rank;
  const Rank size;
  EventLoop& loop;
  const std::function<void()> on_poison;
  const std::function<std::string(Rank)> describe;
  std::atomic<bool>& poisoned;
  std::atomic<Rank>& waiting_for;

  mutable std::mutex mutex;
  std::condition_variable changed;  // a pong, the end of a line, or the first error
  std::vector<Line> lines;
  std::optional<Error> first;
  uint64_t next_token = 1;
  bool closing = false;  // callbacks that still come leave the lines as they are

  void raise(const Error& error) {
    {
      std::lock_guard lock(mutex);
      if (first) return;
      first = error;
      // Release: who sees the flag (acquire, in poisoned()) sees the error.
      poisoned.store(true, std::memory_order_release);
      std::string message = encode(error);
      for (Line& line : lines) send_on(line, message);
    }
    changed.notify_all();
    on_poison();
  }

  void on_readable(Rank peer) {
    std::optional<Error> error;
    {
      std::lock_guard lock(mutex);
      error = receive(peer);
    }
    changed.notify_all();
    if (error) raise(*error);
  }

  // Takes what is there; the error to raise if there is one.
  std::optional<Error> receive(Rank peer) {
    Line& line = lines[peer];
    if (closing || !line.fd) return {};
    char buffer[sizeof(Header) + kMaxTextBytes];
    ssize_t got = ::recv(line.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    int error = errno;
    if (got > 0) {
      line.in.append(buffer, static_cast<size_t>(got));
      return take_messages(peer, line);
    }
    if (got < 0 && (error == EAGAIN || error == EINTR)) return {};
    close(line);
    if (line.goodbye) return {};
    Error lost(Code::kPeerLost, why_lost(peer, got == 0 ? 0 : error), peer);
    if (line.heard) return lost;
    loop.after(kCauseGrace, [self = weak_from_this(), lost] {
      auto state = self.lock();
      if (state && !state->is_closing()) state->raise(lost);
    });
    return {};
  }

  bool is_closing() const {
    std::lock_guard lock(mutex);
    return closing;
  }

  // `error`: of a recv() on its lifeline, 0 at the end of the stream.
  std::string why_lost(Rank peer, int error) const {
    if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN)
      return fmt::format("nothing is heard of {} ({}); its host or the network to it is down",
                         describe(peer), errno_text("recv", error));
    return fmt::format(
        "{} has ended without a goodbye ({}); it was killed, or has crashed: see its log, and the "
        "kernel's for a lack of memory",
        describe(peer), error == 0 ? "its lifeline has closed" : errno_text("recv", error));
  }

  void close(Line& line) {
    line.gone = true;
    loop.forget(line.fd.get());
    line.fd.reset();
  }

  std::optional<Error> take_messages(Rank peer, Line& line) {
    std::optional<Error> error;
    while (line.in.size() >= sizeof(Header)) {
      Header header;
      std::memcpy(&header, line.in.data(), sizeof header);
      if (!is_sound(header, size)) {
        close(line);
        return Error(
            Code::kTransport,
            fmt::format("{} sent what is no message on its lifeline; do all hosts have the "
                        "same version of ringcoll?",
                        describe(peer)),
            peer);
      }
      size_t bytes = sizeof header + header.text_bytes;
      if (line.in.size() < bytes) break;
      if (static_cast<Type>(header.type) == Type::kPoison && !error)
        error = Error(static_cast<Code>(header.code),
                      line.in.substr(sizeof header, header.text_bytes), header.rank);
      else
        take(header, line);
      line.in.erase(0, bytes);
    }
    return error;
  }

  void take(const Header& header, Line& line) {
    line.heard = true;
    switch (static_cast<Type>(header.type)) {
      case Type::kGoodbye:
        line.goodbye = line.gone = true;
        break;
      case Type::kPing:
        send_on(line, encode(Type::kPong, 0, waiting_for.load(std::memory_order_relaxed),
                             header.token, ""));
        break;
      case Type::kPong:
        line.pong_token = header.token;
        line.pong_waiting_for = header.rank;
        break;
      case Type::kHello:
      case Type::kPoison:
        break;
    }
  }

  // Pings a rank; whom it says it waits for if it answers.
  Reply ask(Rank peer, Duration patience, Rank* waits_for) {
    std::unique_lock lock(mutex);
    Line& line = lines[peer];
    if (first) return Reply::kPoisoned;
    if (line.gone) return Reply::kGone;
    if (!line.fd) return Reply::kNoLine;
    uint64_t token = next_token++;
    send_on(line, encode(Type::kPing, 0, kNobody, token, ""));
    changed.wait_for(lock, patience,
                     [&] { return first || line.gone || line.pong_token == token; });
    if (first) return Reply::kPoisoned;
    if (line.pong_token == token) {
      *waits_for = line.pong_waiting_for;
      return Reply::kAnswered;
    }
    return line.gone ? Reply::kGone : Reply::kSilent;
  }

  bool wait_for_poison(Duration patience) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, patience, [&] { return first.has_value(); });
  }

  Error first_error() const {
    std::lock_guard lock(mutex);
    invariant(first.has_value(), "asked for an error before there is one");
    return *first;
  }
};

Lifelines::Lifelines(Rank rank, Rank size, EventLoop& loop, std::function<void()> on_poison,
                     std::function<std::string(Rank)> describe)
    : state_(std::make_shared<State>(rank, size, loop, std::move(on_poison), std::move(describe),
                                     poisoned_, waiting_for_)) {}

Lifelines::~Lifelines() {
  std::vector<int> watched;
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    for (Line& line : state_->lines) {
      if (!line.fd) continue;
      send_on(line, encode(Type::kGoodbye, 0, kNobody, 0, ""));
      watched.push_back(line.fd.get());
    }
  }
  // Not under the lock, which a callback that still runs may want.
  for (int fd : watched) state_->loop.forget(fd);
  // One that has closed its line may go on to raise an error.
  state_->loop.settle();
  for (Line& line : state_->lines) {
    if (!line.fd) continue;
    // What is left unread would turn the close into a reset, which could overtake the goodbye.
    char rest[256];
    while (::recv(line.fd.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
  }
}

void Lifelines::add(Rank peer, Fd fd) {
  State& state = *state_;
  invariant(peer >= 0 && peer < state.size && peer != state.rank, "a lifeline from rank {} to {}",
            state.rank, peer);
  int number = fd.get();
  set_nonblocking(number);
  tune(number);
  {
    std::lock_guard lock(state.mutex);
    Line& line = state.lines[peer];
    invariant(!line.fd && !line.gone, "a second lifeline from rank {} to {}", state.rank, peer);
    line.fd = std::move(fd);
    send_on(line, encode(Type::kHello, 0, kNobody, 0, ""));
    // Who comes late hears the first error, too.
    if (state.first) send_on(line, encode(*state.first));
  }
  state.loop.watch(number, [&state, peer](uint32_t) { state.on_readable(peer); });
}

bool Lifelines::has(Rank peer) const {
  std::lock_guard lock(state_->mutex);
  const Line& line = state_->lines.at(peer);
  return line.fd || line.gone;
}

bool Lifelines::gone(Rank peer) const {
  std::lock_guard lock(state_->mutex);
  return state_->lines.at(peer).gone;
}

void Lifelines::poison(const Error& error) { state_->raise(error); }
Error Lifelines::error() const { return state_->first_error(); }

Error Lifelines::blame(Rank peer, const std::string& doing, Duration grace) {
  State& state = *state_;
  auto timeout = [&](Rank rank, const std::string& cause) {
    return Error(Code::kTimeout, fmt::format("{}: {}", doing, cause), rank);
  };
  // Who waits for whom, from this rank on. It gets longer with each turn and holds no rank twice.
  std::vector<Rank> chain = {state.rank};
  for (Rank asked = peer, next = kNobody;; asked = next) {
    std::string who = state.describe(asked);
    switch (state.ask(asked, grace, &next)) {
      case State::Reply::kPoisoned:
        return state.first_error();
      case State::Reply::kGone:
        return Error(Code::kPeerLost, fmt::format("{}: {} has left the communicator", doing, who),
                     asked);
      case State::Reply::kSilent:
        return timeout(asked, fmt::format("{} does not answer before the deadline; its process is "
                                          "stopped, or its host or the network to it is down",
                                          who));
      case State::Reply::kNoLine:
        // Those who talk to it notice at their own deadlines, which are near, and ask it first.
        if (state.wait_for_poison(grace * 3 / 2)) return state.first_error();
        return timeout(asked,
                       fmt::format("{} is what is waited for at the deadline, and nothing is "
                                   "heard of it",
                                   who));
      case State::Reply::kAnswered:
        break;
    }
    if (next == kNobody)
      return timeout(asked, fmt::format("{} is alive but has not come to this call before the "
                                        "deadline; it is busy with something else (raise "
                                        "RINGCOLL_TIMEOUT_S if that is as it should be), or its "
                                        "calls come in another order",
                                        who));
    chain.push_back(asked);
    if (std::ranges::find(chain, next) != chain.end())
      return timeout(asked, fmt::format("ranks wait for each other in a circle, {} for {}; do all "
                                        "ranks make the same calls in the same order?",
                                        who, state.describe(next)));
  }
}

}  // namespace ringcoll
