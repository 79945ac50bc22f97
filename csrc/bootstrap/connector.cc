#include "bootstrap/connector.h"

#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/gate.h"
#include "net/interfaces.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

// Between two tries when the peer's gate closed the connection because it was too busy.
constexpr Duration kRetryPause = std::chrono::milliseconds(50);

Code code_of(Verdict verdict) {
  return verdict == Verdict::kWrongSecret ? Code::kInvalidArgument : Code::kTransport;
}

}  // namespace

struct Connector::State {
  State(Rank own, const Config& config, EventLoop& loop)
      : rank(own),
        interface(choose_interface(config.interface, list_interfaces())),
        gate(interface.address, loop) {}

  const Rank rank;
  const Interface interface;
  std::vector<std::string>
      addresses;  // these three are set before the gate opens, and constant then
  std::string secret;
  GroupId group{};

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<Rank, uint32_t>, Fd> parked;  // accepted, not yet asked for
  std::map<Rank, std::string> refusals;  // ranks of this job that were not let in, and why
  bool interrupted = false;

  Gate gate;  // the last: its callbacks use the rest

  void on_accepted(const Identity& identity, Fd fd) {
    {
      std::lock_guard lock(mutex);
      // A second connection for one channel means that the peer has given the first one up.
      parked[{identity.from, identity.channel}] = std::move(fd);
    }
    changed.notify_all();
  }

  void on_refused(const Gate::Refusal& refusal) {
    log_debug("a connection of {} was refused: {}", refusal.peer, explain(refusal.verdict));
    // Only who took part in the exchange knows the group: this is a rank of the job that is set up
    // wrongly, and waiting for it is in vain. Of a stranger, nothing but the counter is kept.
    const Identity& claimed = refusal.claimed;
    if (claimed.group != group || claimed.from < 0 || claimed.from >= rank) return;
    {
      std::lock_guard lock(mutex);
      refusals[claimed.from] = fmt::format("{}: {}", refusal.peer, explain(refusal.verdict));
    }
    changed.notify_all();
  }

  Fd connect(Rank peer, uint32_t channel, Deadline deadline);
  Fd accept(Rank peer, uint32_t channel, Deadline deadline);
};

Fd Connector::State::connect(Rank peer, uint32_t channel, Deadline deadline) {
  const std::string& text = addresses[peer];
  std::string link =
      fmt::format("connecting rank {} -> {} at {}, channel {}", rank, peer, text, channel);
  Address address = Address::parse(text);
  for (;;) {
    int error = 0;
    Fd fd = try_connect(address, deadline, &error);
    // The peer listened before it told its address: refused means that it has ended.
    check(error != ECONNREFUSED, Code::kTransport,
          "{}: connect: Connection refused; the process has ended, or a firewall rejects", link);
    check(
        error != ETIMEDOUT, Code::kTimeout,
        "{}: connect: no answer before the deadline; if the hosts have several networks, name the "
        "right one with RINGCOLL_INTERFACE",
        link);
    check(static_cast<bool>(fd), Code::kTransport,
          "{}: {}; if the hosts have several networks, name the right one with RINGCOLL_INTERFACE",
          link, errno_text("connect", error));
    Verdict verdict = prove(fd.get(), secret, {rank, peer, channel, group}, deadline, link);
    if (verdict == Verdict::kAccepted) return fd;
    bool again = verdict == Verdict::kClosed && !deadline.passed();
    check(again, code_of(verdict), "{}: {}", link, explain(verdict));
    std::this_thread::sleep_for(std::min(kRetryPause, deadline.left()));
  }
}

Fd Connector::State::accept(Rank peer, uint32_t channel, Deadline deadline) {
  std::string link = fmt::format("waiting at {} ({}) for rank {} to connect to rank {}, channel {}",
                                 gate.address().text(), interface.name, peer, rank, channel);
  std::unique_lock lock(mutex);
  auto found = parked.end();
  bool decided = changed.wait_for(lock, deadline.left(), [&] {
    found = parked.find({peer, channel});
    return found != parked.end() || refusals.contains(peer) || interrupted;
  });
  if (decided && found != parked.end()) return std::move(parked.extract(found).mapped());
  check(!interrupted, Code::kTransport, "{}: given up, for the communicator has failed", link);
  check(!decided, Code::kInvalidArgument, "{}: {}", link, refusals[peer]);
  std::string strangers =
      gate.rejected() ? fmt::format(" ({} connections of strangers were rejected)", gate.rejected())
                      : "";
  throw Error(Code::kTimeout,
              fmt::format("{}: it did not come before the deadline{}; it may be stopped or have "
                          "failed (see its log), or a firewall drops what comes to this address",
                          link, strangers));
}

Connector::Connector(Rank rank, const Config& config, EventLoop& loop)
    : state_(std::make_unique<State>(rank, config, loop)) {}
Connector::~Connector() = default;

void Connector::interrupt() {
  {
    std::lock_guard lock(state_->mutex);
    state_->interrupted = true;
  }
  state_->changed.notify_all();
}

std::string Connector::address() const { return state_->gate.address().text(); }
uint64_t Connector::rejected() const { return state_->gate.rejected(); }

void Connector::set_peers(std::vector<std::string> addresses, std::string secret) {
  State& state = *state_;
  invariant(state.rank < static_cast<Rank>(addresses.size()), "rank {} of {}", state.rank,
            addresses.size());
  std::string all;
  for (const std::string& address : addresses) all += address + '\n';
  // Ports are fresh for each communicator, so their list is different for each, and the same on its
  // ranks.
  state.group = make_group_id(all);
  state.addresses = std::move(addresses);
  state.secret = std::move(secret);
  state.gate.open(
      {state.secret, state.rank, 0, state.rank - 1, state.group},
      [&state](const Identity& from, Fd fd) { state.on_accepted(from, std::move(fd)); },
      [&state](const Gate::Refusal& refusal) { state.on_refused(refusal); });
}

Fd Connector::dial(Rank peer, uint32_t channel, Deadline deadline) {
  State& state = *state_;
  invariant(peer >= 0 && peer < static_cast<Rank>(state.addresses.size()) && peer != state.rank,
            "rank {} dials rank {}", state.rank, peer);
  try {
    return state.rank < peer ? state.connect(peer, channel, deadline)
                             : state.accept(peer, channel, deadline);
  } catch (const Error& error) {
    throw Error(error.code(), error.what(), peer);
  }
}

}  // namespace ringcoll
