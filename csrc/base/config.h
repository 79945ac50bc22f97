// The values of the knobs, which every layer gets. The row of a knob says its range, its owner and
// whether ranks may differ. Rows are in base/core_knobs.cc, or beside the transport that owns them.
#pragma once

#include <cstdint>
#include <string>

namespace ringcoll {

/// The network interfaces that a variable of another program names.
struct LauncherInterface {
  std::string variable;  // HOROVOD_GLOO_IFACE
  std::string names;     // as RINGCOLL_INTERFACE takes them; "" = none named
};

/// The values in force for one communicator. A field has the knob's name in lower case. Its comment
/// repeats the owner and the agreement (Agreement in base/knobs.h) from the knob's row.
struct Config {
  std::string transport;  // mesh, own: "auto", or the name of a transport: this one or an error
  std::string interface;  // connect, own: networks for TCP; "" = the launcher's, or chosen
  LauncherInterface launcher_interface;  // not a knob
  std::string hostid;          // topology, own: id of this host; "" = by who can map whose memory
  std::string topology;        // topology, rank 0's: file that says which switches join which hosts
  std::string costs;           // mesh, rank 0's: file (topology/costs.h); "" = measured
  std::string secret;          // mesh, agreed: "" = rank 0 makes one and publishes it in the store
  double timeout_s = 0;        // mesh, own: deadline of every wait
  int64_t arena_bytes = 0;     // mesh, agreed: shared memory that tensors are packed into
  int64_t spin_us = 0;         // mesh, own: microseconds that a wait polls before it blocks
  std::string algorithm;       // coll, agreed: "" = by cost; "allreduce=ring,broadcast=binomial"
  int64_t segment_bytes = 0;   // coll, agreed: bytes of a piece of a collective; 0 = chosen
  int64_t slots = 0;           // coll, agreed: pieces of a collective in flight; 0 = chosen
  int64_t inline_bytes = 0;    // transport, agreed: largest message that travels beside its flag
  int64_t handed_bytes = 0;    // transport, agreed: largest message in a handed buffer
  std::string log;             // engine, own: error, warning, info, debug
  int64_t tcp_streams = 0;     // tcp, agreed: connections to each peer; 0 = measured
  std::string devices;         // verbs, own: RDMA ports, "mlx5_0:1,mlx5_1"; "" = chosen
  int64_t gid_index = -1;      // verbs, own: index in an RDMA port's table; -1 = chosen
  int64_t traffic_class = 0;   // verbs, own: in RoCE packets; DSCP in the upper six bits
  int64_t service_level = 0;   // verbs, own: in InfiniBand packets
  int64_t qp_timeout = 0;      // verbs, own: 4.096 us * 2^this until a packet is repeated
  int64_t qp_retries = 0;      // verbs, own: repeats before the link is given up
  int64_t register_bytes = 0;  // verbs, own: most memory of the caller registered at a time
};

}  // namespace ringcoll
