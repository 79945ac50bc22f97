// The knobs of the library's own layers, in the order of docs/knobs.md. docs/contributing.md shows
// how to add one.
#include "base/knobs.h"

namespace ringcoll {

using enum Agreement;
using knob::kGiB, knob::kKiB, knob::kMiB;

const std::vector<KnobRow>& core_knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_INTERFACE", "bootstrap", kOwn, knob::Text{&Config::interface}, "",
       "network interfaces for TCP: \"eth0,ib\" (names that begin so), \"=eth0\" (whole names), "
       "\"10.1.0.0/16\", \"^docker\" (all but these). Empty: those that the launcher found "
       "(HOROVOD_GLOO_IFACE, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), else all. Of several "
       "networks the fastest that joins all hosts, as measured"},
      {"RINGCOLL_HOSTID", "topology", kOwn, knob::Text{&Config::hostid}, "",
       "id and name of this host: ranks with different ones are on different hosts, which do not "
       "share memory. Empty: by who can map whose memory"},
      {"RINGCOLL_TOPOLOGY", "topology", kRankZero, knob::Text{&Config::topology}, "",
       "file that says which switches join which hosts: SLURM's topology.conf or topology.yaml, or "
       "JSON {\"host\": \"spine.leaf\"}. Rank 0 reads it for all. Empty: by SLURM_TOPOLOGY_ADDR, "
       "else hosts in natural order of their names"},
      {"RINGCOLL_COSTS", "mesh", kRankZero, knob::Text{&Config::costs}, "",
       "JSON file with what links cost, which is then not measured; rank 0's, and other ranks have "
       "the same or none. Empty: measured when a job starts"},
      {"RINGCOLL_SECRET", "mesh", kAgreed, knob::Text{&Config::secret, {}, true}, "",
       "secret of the job, the same on all ranks. Empty: rank 0 makes one and the store carries "
       "it"},
      {"RINGCOLL_TIMEOUT_S", "mesh", kOwn, knob::Seconds{&Config::timeout_s, 0.01, 86400}, "300",
       "deadline of every wait for a peer, in seconds; a wait of 30 s, 60 s and so on is logged"},
      {"RINGCOLL_ARENA_BYTES", "mesh", kAgreed, knob::Bytes{&Config::arena_bytes, kMiB, 64 * kGiB},
       "64M", "shared memory of a rank that tensors are packed into; pages count when first used"},
      {"RINGCOLL_SPIN_US", "mesh", kOwn, knob::Integer{&Config::spin_us, 0, 1000000}, "25",
       "microseconds that a wait polls before it blocks, and as much longer as a peer on the host "
       "needs to copy what is waited for; 16 times as long where a host has more ranks than CPUs, "
       "for there it gives way after each poll"},
      {"RINGCOLL_ALGORITHM", "coll", kAgreed, knob::Text{&Config::algorithm}, "",
       "schedule by name, \"ring\" or \"allreduce=ring,broadcast=binomial\". Empty: by cost"},
      {"RINGCOLL_SEGMENT_BYTES", "coll", kAgreed, knob::Bytes{&Config::segment_bytes, 0, kGiB}, "0",
       "bytes of one piece (segment) of a large collective in its pipeline. 0: between hosts by "
       "the costs of the links, on one host by what caches hold"},
      {"RINGCOLL_SLOTS", "coll", kAgreed, knob::Integer{&Config::slots, 0, 64}, "0",
       "pieces of a large collective (16 of one at most), or small calls, in flight. 0: by the "
       "costs of the links"},
      {"RINGCOLL_INLINE_BYTES", "transport", kAgreed,
       knob::Bytes{&Config::inline_bytes, 0, 64 * kKiB}, "1K",
       "largest message that shared memory carries beside its flag"},
      {"RINGCOLL_HANDED_BYTES", "transport", kAgreed, knob::Bytes{&Config::handed_bytes, 0, kMiB},
       "128K",
       "largest message that shared memory copies when it is sent, into a buffer that it hands "
       "over. A pair of ranks has 36 of them, which take memory when they are used. 0: none"},
      {"RINGCOLL_LOG", "engine", kOwn,
       knob::Text{&Config::log, {"error", "warning", "info", "debug"}}, "info",
       "what is written to standard error"},
  };
  return rows;
}

}  // namespace ringcoll
