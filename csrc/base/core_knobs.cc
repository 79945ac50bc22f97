// The knobs of the library's own layers, in the order of docs/knobs.md. docs/contributing.md shows
// how to add one.
#include "base/knobs.h"

namespace ringcoll {

using enum Agreement;
using knob::kGiB, knob::kKiB, knob::kMiB;

const std::vector<KnobRow>& core_knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_INTERFACE", "connect", kOwn, knob::Text{&Config::interface}, "",
       "network interfaces for TCP: \"eth0,ib\" (beginnings of names), \"=eth0\" (whole names), "
       "\"10.1.0.0/16\" (a network), \"^docker\" (all but these). Empty: those that the launcher "
       "names (HOROVOD_GLOO_IFACE, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), else all. If several "
       "networks join all hosts, the one that is measured to be the fastest is used"},
      {"RINGCOLL_HOSTID", "topology", kOwn, knob::Text{&Config::hostid}, "",
       "id and name of this host. Ranks with different ids count as ranks of different hosts, and "
       "share no memory. Empty: ranks that can map one another's memory are on one host"},
      {"RINGCOLL_TOPOLOGY", "topology", kRankZero, knob::Text{&Config::topology}, "",
       "file that says which switches join which hosts: SLURM's topology.conf or topology.yaml, or "
       "JSON {\"host\": \"spine.leaf\"}. Rank 0 reads it for all ranks. Empty: SLURM_TOPOLOGY_ADDR "
       "says it, else hosts are ordered by their names and no switch is known"},
      {"RINGCOLL_COSTS", "mesh", kRankZero, knob::Text{&Config::costs}, "",
       "JSON file with the costs of links, which are then not measured. Rank 0's file counts; "
       "other ranks have the same or none. Empty: links are measured when a job starts"},
      {"RINGCOLL_SECRET", "mesh", kAgreed, knob::Text{&Config::secret, {}, true}, "",
       "secret with which the ranks of the job recognize one another, the same on all ranks. "
       "Empty: rank 0 makes one and puts it into the store"},
      {"RINGCOLL_TIMEOUT_S", "mesh", kOwn, knob::Seconds{&Config::timeout_s, 0.01, 86400}, "300",
       "deadline of every wait for another rank, in seconds. The log reports a wait after 30 s, "
       "60 s, 120 s and so on"},
      {"RINGCOLL_ARENA_BYTES", "mesh", kAgreed, knob::Bytes{&Config::arena_bytes, kMiB, 64 * kGiB},
       "64M",
       "shared memory of each rank into which tensors are packed. It takes up memory only as far "
       "as it has been used"},
      {"RINGCOLL_SPIN_US", "mesh", kOwn, knob::Integer{&Config::spin_us, 0, 1000000}, "25",
       "microseconds that a wait polls before it blocks. It polls longer while another rank of the "
       "host copies the data, and 16 times as long where a host has more ranks than CPUs, since "
       "ranks yield the CPU after each poll there"},
      {"RINGCOLL_ALGORITHM", "coll", kAgreed, knob::Text{&Config::algorithm}, "",
       "schedule by name, for all collectives that have it (\"ring\") or for each "
       "(\"allreduce=ring,broadcast=binomial\"). Empty: the cheapest by the costs of the links"},
      {"RINGCOLL_SEGMENT_BYTES", "coll", kAgreed, knob::Bytes{&Config::segment_bytes, 0, kGiB}, "0",
       "bytes of one piece (segment) of a large collective, whose pieces are pipelined. 0: chosen "
       "between hosts by the costs of the links, on one host by the sizes of the caches"},
      {"RINGCOLL_SLOTS", "coll", kAgreed, knob::Integer{&Config::slots, 0, 64}, "0",
       "how many pieces of large collectives (at most 16 of one), or small calls, are in flight at "
       "a time. 0: chosen by the costs of the links"},
      {"RINGCOLL_INLINE_BYTES", "transport", kAgreed,
       knob::Bytes{&Config::inline_bytes, 0, 64 * kKiB}, "1K",
       "largest message within a host that is copied into the queue between the two ranks when it "
       "is sent"},
      {"RINGCOLL_HANDED_BYTES", "transport", kAgreed, knob::Bytes{&Config::handed_bytes, 0, kMiB},
       "128K",
       "largest message within a host that is copied when it is sent, into a buffer that becomes "
       "the receiver's. A pair of ranks has 36 such buffers, which take up memory only as far as "
       "they are used. 0: none"},
      {"RINGCOLL_LOG", "engine", kOwn,
       knob::Text{&Config::log, {"error", "warning", "info", "debug"}}, "info",
       "least severe level of the messages that are written to standard error"},
  };
  return rows;
}

}  // namespace ringcoll
