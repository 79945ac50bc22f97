// The knobs: every RINGCOLL_* variable, declared once, in the table of config.cc. docs/knobs.md is
// generated from it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ringcoll {

/// What another program's variable says of the network interfaces.
struct LauncherInterface {
  std::string variable;  // HOROVOD_GLOO_IFACE
  std::string names;     // as RINGCOLL_INTERFACE takes them; "" = nothing was said
};

/// The values in force for one communicator. Field names are the knobs' names in lower case. Those
/// marked "agreed" must be the same on all ranks for the ranks to run the same schedule: all adopt
/// rank 0's when a communicator is made.
struct Config {
  std::string transport;  // "auto", or a name from the transport registry: this one or an error
  std::string interface;  // network interfaces for TCP; "" = what the launcher says, or chosen
  LauncherInterface launcher_interface;  // no knob
  std::string hostid;                    // of this host; "" = by who can map whose memory
  std::string topology;        // file that says which switches join which hosts, as rank 0 reads it
  std::string algorithm;       // agreed; "" = by cost, else "allreduce=ring,broadcast=binomial"
  std::string secret;          // of the job; "" = rank 0 makes one and publishes it in the store
  std::string costs;           // file with costs of links (topology/costs.h); "" = measured
  std::string log;             // error, warning, info, debug
  double timeout_s = 0;        // deadline of every wait
  int64_t arena_bytes = 0;     // agreed; shared, registered memory that tensors are packed into
  int64_t segment_bytes = 0;   // agreed; bytes of a piece of a pipelined collective; 0 = chosen
  int64_t slots = 0;           // agreed; pieces of a collective in flight; 0 = chosen
  int64_t inline_bytes = 0;    // agreed; largest message that travels beside its flag
  int64_t spin_us = 0;         // microseconds that a wait polls before it blocks
  bool spread = false;         // leave the CPU of a rank that is waited for
  int64_t tcp_streams = 0;     // agreed; TCP connections to each peer; 0 = as many as pay
  std::string devices;         // RDMA ports, "mlx5_0:1,mlx5_1"; "" = chosen
  int64_t gid_index = -1;      // of an RDMA port's table; -1 = chosen
  int64_t traffic_class = 0;   // of RoCE packets; DSCP in the upper six bits
  int64_t service_level = 0;   // of InfiniBand packets
  int64_t qp_timeout = 0;      // RDMA: 4.096 us * 2^this until a packet is repeated
  int64_t qp_retries = 0;      // RDMA: how often a packet is repeated before the link is given up
  int64_t register_bytes = 0;  // RDMA: memory of the caller's that is registered at a time
  bool huge_pages = false;     // ask for transparent huge pages in the arena
};

/// One row of the table, as text, for `ringcoll info` and docs/knobs.md.
struct Knob {
  std::string name;  // RINGCOLL_TIMEOUT_S
  std::string type;  // string, integer, bytes, seconds, boolean
  std::string default_value;
  std::string range;  // "1 … 86400", or the words allowed
  std::string help;
  std::string value;  // in force in `environment`
};

/// Looks a variable up; null if it is not set. The default is the process's environment.
using Getenv = std::function<const char*(const char*)>;

/// Reads all knobs. Throws Error(kInvalidArgument) that names the knob, the value and the range.
Config read_config(const Getenv& environment = {});
/// The table with the values in force.
std::vector<Knob> describe_knobs(const Getenv& environment = {});
/// For each name that begins with RINGCOLL_ and is not a knob: a warning that names the nearest
/// knob.
std::vector<std::string> unknown_knobs(std::span<const std::string> names);
/// Names of all variables of the process's environment that begin with RINGCOLL_.
std::vector<std::string> environment_names();

}  // namespace ringcoll
