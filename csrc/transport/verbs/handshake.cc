// How two ranks connect: what they tell each other over an authenticated connection, the states of
// the queue pair, and the proof that the path carries RDMA.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/socket.h"
#include "transport/verbs/endpoint.h"

namespace ringcoll::rdma {
namespace {

// This end's queue pair can receive.
constexpr char kReceives = 'R';
// This end has seen that its writes arrive. The other end may send before it hears so, but not
// leave: its queue pair acknowledges the proof.
constexpr char kProven = 'P';

}  // namespace

void VerbsEndpoint::connect(Fd socket, const Address& mine, Deadline deadline) {
  socket_ = std::move(socket);
  mine_ = {.address = mine,
           .qp_num = pair_.number(),
           .inbox = inbox_.region().address(),
           .psn = psn_,
           .rkey = inbox_.region().rkey()};
  send_all(socket_.get(), &mine_, sizeof mine_, deadline, link());
}

// Receives a setup message; false until the peer has sent all of it.
bool VerbsEndpoint::hear(void* into, size_t bytes) {
  auto* next = static_cast<std::byte*>(into);
  heard_ += try_recv_some(socket_.get(), next + heard_, bytes - heard_, link());
  if (heard_ < bytes) return false;
  heard_ = 0;
  return true;
}

uint32_t VerbsEndpoint::path_mtu_bytes() const {
  return std::min(mine_.address.mtu_bytes, theirs_.address.mtu_bytes);
}

verbs::Connection VerbsEndpoint::connection() const {
  verbs::Connection c;
  const verbs::UsablePort& port = usable_;
  c.port = static_cast<uint8_t>(port.port.number);
  c.remote_qp_num = theirs_.qp_num;
  c.local_psn = psn_;
  c.remote_psn = theirs_.psn;
  c.path_mtu_bytes = path_mtu_bytes();
  c.global_route = verbs::needs_global_route(port.port, port.gid.gid, theirs_.address.gid);
  c.gid_index = static_cast<uint8_t>(std::max(port.gid.index, 0));
  c.remote_gid = theirs_.address.gid;
  c.remote_lid = theirs_.address.lid;
  c.service_level = static_cast<uint8_t>(settings_.service_level);
  c.traffic_class = static_cast<uint8_t>(settings_.traffic_class);
  c.timeout_exponent = static_cast<uint8_t>(settings_.qp_timeout);
  c.retries = static_cast<uint8_t>(settings_.qp_retries);
  return c;
}

bool VerbsEndpoint::try_establish(Deadline deadline) {
  wants_other_ = !hear(&theirs_, sizeof theirs_);
  if (wants_other_) return false;
  if (theirs_.address.magic != kMagic || theirs_.address.rank != peer_)
    corrupt("it did not say who it is");
  std::string why = mismatch(theirs_.address, mine_.address);
  check(why.empty(), Code::kTransport, "{} {}", why, link());
  verbs::Connection c = connection();
  pair_.to_init(c);
  invariant(pair_.try_receive(0, kReceiveRequests) == kReceiveRequests, "receive queue full {}",
            link());
  pair_.to_ready_to_receive(c);
  pair_.to_ready_to_send(c);
  send_all(socket_.get(), &kReceives, 1, deadline, link());
  return true;
}

// Two packets, one of them of full length, which a path with a smaller MTU would lose.
void VerbsEndpoint::post_proof() {
  auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(path_mtu_bytes() + 1, sent_layout_.bytes()));
  verbs::Slice slice = verbs::slice_of(outbox_.region(), outbox_.data(), bytes);
  proof_ = post(
      {.from = std::span(&slice, 1), .remote_address = theirs_.inbox, .rkey = theirs_.rkey}, true);
}

// A packet that comes before the peer's queue pair can receive is lost, and costs a timeout. So the
// proof waits until the peer says that it can.
bool VerbsEndpoint::try_prove(Deadline deadline) {
  if (proof_ == 0) {
    char word = 0;
    wants_other_ = !hear(&word, 1);
    if (wants_other_) return false;
    if (word != kReceives) corrupt("it did not say that it receives");
    post_proof();
  }
  poll_queue();
  if (reclaimed_ >= proof_) {
    if (!std::exchange(told_proven_, true)) send_all(socket_.get(), &kProven, 1, deadline, link());
    return true;
  }
  wants_other_ = true;
  check(!deadline.passed(), Code::kTimeout,
        "packets of RDMA do not get through to {}: no acknowledgement came before the deadline; is "
        "UDP port 4791 (RoCE v2) open between the hosts, and do all switches carry the MTU of {} "
        "bytes and its headers? {}",
        text_of(theirs_.address), path_mtu_bytes(), link());
  return false;
}

// False until the peer has proven the path, too, or has gone.
bool VerbsEndpoint::setup_has_ended() {
  if (!told_proven_ || !socket_) return !socket_;
  char word = 0;
  try {
    if (!hear(&word, 1)) return false;
  } catch (const Error& error) {
    log_debug("the peer has closed the socket of the setup: {}", error.what());
  }
  socket_.reset();
  return true;
}

}  // namespace ringcoll::rdma
