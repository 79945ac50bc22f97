// The table of transports. The conformance suite, the choice for each pair of ranks and `ringcoll
// doctor` iterate over it.
#include "transport/loopback/loopback.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"
#include "verbs/knobs.h"

namespace ringcoll {
namespace {

constexpr TransportRow kTransports[] = {
    {"shm", "shared memory of one host; payload is read where the sender packed it",
     LinkClass::kHost, true, probe_shm, make_shm},
    {"verbs", "RDMA by InfiniBand or RoCE v2; payload is written where the receiver wants it",
     LinkClass::kNetwork, true, probe_verbs, make_verbs, verbs_found, verbs::knobs},
    {"tcp", "TCP over the chosen interface, RINGCOLL_TCP_STREAMS connections to each peer",
     LinkClass::kNetwork, true, probe_tcp, make_tcp, nullptr, tcp_knobs},
    // Used only if it is named: shm serves ranks that are threads as well.
    {"loopback", "threads of one process; for tests", LinkClass::kProcess, false, probe_loopback,
     make_loopback},
};

static_assert(std::size(kTransports) <= kMostTransports);

}  // namespace

std::span<const TransportRow> transports() { return kTransports; }

const TransportRow* find_transport(std::string_view name) {
  for (const TransportRow& row : kTransports)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace ringcoll
