#include "verbs/knobs.h"

namespace ringcoll::verbs {

using enum Agreement;

const std::vector<KnobRow>& knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_DEVICES", "verbs", kOwn, knob::Text{&Config::devices}, "",
       "RDMA ports to use, such as \"mlx5_0:1,mlx5_1\". A name without a number means the first "
       "active port of that device. The usable ports are divided among the ranks of a host. Empty: "
       "the fastest ports in networks that all hosts have"},
      {"RINGCOLL_GID_INDEX", "verbs", kOwn, knob::Integer{&Config::gid_index, -1, 255}, "-1",
       "entry of the RDMA port's GID table. -1: one of RoCE v2 and of the port's own interface, "
       "IPv4 before IPv6"},
      {"RINGCOLL_TRAFFIC_CLASS", "verbs", kOwn, knob::Integer{&Config::traffic_class, 0, 255}, "0",
       "traffic class of RoCE packets. Its upper six bits are the DSCP (104 is DSCP 26), which "
       "switches map to a priority"},
      {"RINGCOLL_SERVICE_LEVEL", "verbs", kOwn, knob::Integer{&Config::service_level, 0, 15}, "0",
       "service level of InfiniBand packets, or priority of RoCE packets"},
      // 17 and 6 give at least 3.8 s (retry_seconds() of verbs/queue_pair.h), so that a link may be
      // away for 2 s. The default is not 7 retries, which Soft-RoCE takes for "without end".
      {"RINGCOLL_QP_TIMEOUT", "verbs", kOwn, knob::Integer{&Config::qp_timeout, 1, 31}, "17",
       "RDMA: a packet is repeated if no answer comes within 4.096 us * 2^value. 17 is 0.54 s"},
      {"RINGCOLL_QP_RETRIES", "verbs", kOwn, knob::Integer{&Config::qp_retries, 0, 7}, "6",
       "RDMA: how often a packet is repeated before the link is given up. With a "
       "RINGCOLL_QP_TIMEOUT of 17, 6 is at least 3.8 s. On Soft-RoCE 7 means without end"},
      {"RINGCOLL_REGISTER_BYTES", "verbs", kOwn,
       knob::Bytes{&Config::register_bytes, 0, 1024 * knob::kGiB}, "4G",
       "RDMA: most memory of the caller that is registered at a time. Tensors that are passed "
       "again are registered, and then sent and received without a copy. 0: none"},
  };
  return rows;
}

}  // namespace ringcoll::verbs
