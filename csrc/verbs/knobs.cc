#include "verbs/knobs.h"

namespace ringcoll::verbs {

using enum Agreement;

const std::vector<KnobRow>& knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_DEVICES", "verbs", kOwn, knob::Text{&Config::devices}, "",
       "RDMA ports to use, \"mlx5_0:1,mlx5_1\"; a name alone is its first active port. The ranks "
       "of a host share out those that are usable. Empty: the fastest, in networks that all hosts "
       "have"},
      {"RINGCOLL_GID_INDEX", "verbs", kOwn, knob::Integer{&Config::gid_index, -1, 255}, "-1",
       "entry of the RDMA port's GID table. -1: RoCE v2, the port's own interface, IPv4 first"},
      {"RINGCOLL_TRAFFIC_CLASS", "verbs", kOwn, knob::Integer{&Config::traffic_class, 0, 255}, "0",
       "traffic class of RoCE packets, DSCP in the upper six bits (26 is 104), as the switches map "
       "it"},
      {"RINGCOLL_SERVICE_LEVEL", "verbs", kOwn, knob::Integer{&Config::service_level, 0, 15}, "0",
       "service level of InfiniBand packets; priority of RoCE ones"},
      // 17 and 6 give at least 3.8 s (retry_seconds() of verbs/queue_pair.h), so that a link may be
      // away for 2 s. The default is not 7 retries, which Soft-RoCE takes for "without end".
      {"RINGCOLL_QP_TIMEOUT", "verbs", kOwn, knob::Integer{&Config::qp_timeout, 1, 31}, "17",
       "RDMA: a packet is repeated after 4.096 us * 2^this without an answer. 17 is 0.54 s"},
      {"RINGCOLL_QP_RETRIES", "verbs", kOwn, knob::Integer{&Config::qp_retries, 0, 7}, "6",
       "RDMA: how often a packet is repeated before the link is given up. With a timeout of 17, 6 "
       "is 3.8 s at least; on Soft-RoCE 7 is without end"},
      {"RINGCOLL_REGISTER_BYTES", "verbs", kOwn,
       knob::Bytes{&Config::register_bytes, 0, 1024 * knob::kGiB}, "4G",
       "RDMA: tensors that come back are registered, up to this many bytes, and then not copied. "
       "0: none"},
  };
  return rows;
}

}  // namespace ringcoll::verbs
