#include "base/config.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>
#include <variant>

#include "base/error.h"

namespace ringcoll {
namespace {

using Words = std::vector<std::string>;
struct Text {
  std::string Config::* field;
  Words allowed;  // empty: anything
};
struct Integer {
  int64_t Config::* field;
  int64_t least, most;
  bool bytes;  // accepts the suffixes K, M, G (powers of 1024)
};
struct Seconds {
  double Config::* field;
  double least, most;
};
struct Boolean {
  bool Config::* field;
};

struct Row {
  const char* name;
  std::variant<Text, Integer, Seconds, Boolean> kind;
  const char* default_value;
  const char* help;
};

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

// The one table of knobs. docs/contributing.md shows how to add one.
const std::vector<Row>& table() {
  // base/ does not see the registry of transports; transport_test holds this against it.
  static const Words transports = {"auto", "shm", "tcp", "verbs", "loopback"};
  static const std::vector<Row> rows = {
      {"RINGCOLL_TRANSPORT", Text{&Config::transport, transports}, "auto",
       "the transport for every link: this one or an error. auto: the nearest for each pair"},
      {"RINGCOLL_INTERFACE", Text{&Config::interface, {}}, "",
       "network interfaces for TCP: \"eth0,ib\" (names that begin so), \"=eth0\" (whole names), "
       "\"10.1.0.0/16\", \"^docker\" (all but these). Empty: those that the launcher found "
       "(HOROVOD_GLOO_IFACE, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), else all. Of several "
       "networks the fastest that joins all hosts, as measured"},
      {"RINGCOLL_HOSTID", Text{&Config::hostid, {}}, "",
       "id and name of this host: ranks with different ones are on different hosts, which do not "
       "share memory. Empty: by who can map whose memory"},
      {"RINGCOLL_TOPOLOGY", Text{&Config::topology, {}}, "",
       "file that says which switches join which hosts: SLURM's topology.conf or topology.yaml, or "
       "JSON {\"host\": \"spine.leaf\"}. Rank 0 reads it for all. Empty: by SLURM_TOPOLOGY_ADDR, "
       "else hosts in natural order of their names"},
      {"RINGCOLL_ALGORITHM", Text{&Config::algorithm, {}}, "",
       "schedule by name, \"ring\" or \"allreduce=ring,broadcast=binomial\". Empty: by cost"},
      {"RINGCOLL_COSTS", Text{&Config::costs, {}}, "",
       "JSON file with what links cost, which is then not measured; rank 0's, and other ranks have "
       "the same or none. Empty: measured when a job starts"},
      {"RINGCOLL_SECRET", Text{&Config::secret, {}}, "",
       "secret of the job, the same on all ranks. Empty: rank 0 makes one and the store carries "
       "it"},
      {"RINGCOLL_LOG", Text{&Config::log, {"error", "warning", "info", "debug"}}, "info",
       "what is written to standard error"},
      {"RINGCOLL_TIMEOUT_S", Seconds{&Config::timeout_s, 0.01, 86400}, "30",
       "deadline of every wait for a peer, in seconds"},
      {"RINGCOLL_ARENA_BYTES", Integer{&Config::arena_bytes, kMiB, 64 * kGiB, true}, "64M",
       "shared memory of a rank that tensors are packed into; pages count when first used"},
      {"RINGCOLL_SEGMENT_BYTES", Integer{&Config::segment_bytes, 0, kGiB, true}, "0",
       "bytes of one piece (segment) of a large collective in its pipeline. 0: between hosts by "
       "the costs of the links, on one host by whether ranks share cores"},
      {"RINGCOLL_SLOTS", Integer{&Config::slots, 0, 64, false}, "0",
       "pieces of a large collective, or small calls, in flight. 0: by the costs of the links"},
      {"RINGCOLL_INLINE_BYTES", Integer{&Config::inline_bytes, 0, 64 * kKiB, true}, "1K",
       "largest message that shared memory carries beside its flag"},
      {"RINGCOLL_SPIN_US", Integer{&Config::spin_us, 0, 1000000, false}, "25",
       "microseconds that a wait polls before it blocks, and as much longer as a peer on the host "
       "needs to copy what is waited for; 16 times as long where a host has more ranks than CPUs, "
       "for there it gives way after each poll"},
      {"RINGCOLL_SPREAD", Boolean{&Config::spread}, "1",
       "a thread that waits for a rank on its own CPU moves to another that it may run on"},
      {"RINGCOLL_TCP_STREAMS", Integer{&Config::tcp_streams, 0, 16, false}, "0",
       "TCP connections to each peer that carry data. 0: up to 4, as many as are seen to pay"},
      {"RINGCOLL_DEVICES", Text{&Config::devices, {}}, "",
       "RDMA ports to use, \"mlx5_0:1,mlx5_1\"; a name alone is its first active port. The ranks "
       "of a host share out those that are usable. Empty: the fastest, in networks that all hosts "
       "have"},
      {"RINGCOLL_GID_INDEX", Integer{&Config::gid_index, -1, 255, false}, "-1",
       "entry of the RDMA port's GID table. -1: RoCE v2, the port's own interface, IPv4 first"},
      {"RINGCOLL_TRAFFIC_CLASS", Integer{&Config::traffic_class, 0, 255, false}, "0",
       "traffic class of RoCE packets, DSCP in the upper six bits (26 is 104), as the switches map "
       "it"},
      {"RINGCOLL_SERVICE_LEVEL", Integer{&Config::service_level, 0, 15, false}, "0",
       "service level of InfiniBand packets; priority of RoCE ones"},
      // 17 and 6: at least 3.8 s (verbs/queue_pair.h, retry_seconds), so that a link may be away
      // for 2 s. Not 7 retries, which Soft-RoCE takes for "without end".
      {"RINGCOLL_QP_TIMEOUT", Integer{&Config::qp_timeout, 1, 31, false}, "17",
       "RDMA: a packet is repeated after 4.096 us * 2^this without an answer. 17 is 0.54 s"},
      {"RINGCOLL_QP_RETRIES", Integer{&Config::qp_retries, 0, 7, false}, "6",
       "RDMA: how often a packet is repeated before the link is given up. With a timeout of 17, 6 "
       "is 3.8 s at least; on Soft-RoCE 7 is without end"},
      {"RINGCOLL_REGISTER_BYTES", Integer{&Config::register_bytes, 0, 1024 * kGiB, true}, "4G",
       "RDMA: tensors that come back are registered, up to this many bytes, and then not copied. "
       "0: none"},
      {"RINGCOLL_HUGE_PAGES", Boolean{&Config::huge_pages}, "1",
       "ask for transparent huge pages in the arena"},
  };
  return rows;
}

const char* type_of(const Row& row) {
  if (std::holds_alternative<Text>(row.kind)) return "string";
  if (std::holds_alternative<Seconds>(row.kind)) return "seconds";
  if (std::holds_alternative<Boolean>(row.kind)) return "boolean";
  return std::get<Integer>(row.kind).bytes ? "bytes" : "integer";
}

std::string range_of(const Row& row) {
  if (auto* t = std::get_if<Text>(&row.kind))
    return t->allowed.empty() ? "any" : fmt::format("{}", fmt::join(t->allowed, ", "));
  if (auto* s = std::get_if<Seconds>(&row.kind)) return fmt::format("{} to {}", s->least, s->most);
  if (auto* i = std::get_if<Integer>(&row.kind)) return fmt::format("{} to {}", i->least, i->most);
  return "0, 1";
}

std::optional<int64_t> parse_integer(std::string_view text, bool bytes) {
  int64_t value = 0, unit = 1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.empty()) return {};
  std::string_view suffix(end, text.data() + text.size() - end);
  if (bytes && (suffix == "K" || suffix == "KiB")) unit = kKiB;
  if (bytes && (suffix == "M" || suffix == "MiB")) unit = kMiB;
  if (bytes && (suffix == "G" || suffix == "GiB")) unit = kGiB;
  if (!suffix.empty() && unit == 1) return {};
  if (std::abs(value) > INT64_MAX / unit) return {};
  return value * unit;
}

std::optional<double> parse_seconds(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

/// False if the text is not a value of the row.
bool assign(const Row& row, const std::string& text, Config* config) {
  if (auto* t = std::get_if<Text>(&row.kind)) {
    config->*t->field = text;
    return t->allowed.empty() || std::ranges::count(t->allowed, text) > 0;
  }
  if (auto* i = std::get_if<Integer>(&row.kind)) {
    auto value = parse_integer(text, i->bytes);
    if (value) config->*i->field = *value;
    return value && *value >= i->least && *value <= i->most;
  }
  if (auto* s = std::get_if<Seconds>(&row.kind)) {
    auto value = parse_seconds(text);
    if (value) config->*s->field = *value;
    return value && *value >= s->least && *value <= s->most;
  }
  config->*std::get<Boolean>(row.kind).field = text == "1";
  return text == "0" || text == "1";
}

const char* lookup(const Getenv& environment, const char* name) {
  return environment ? environment(name) : std::getenv(name);
}

// horovodrun puts one interface that it has found to join the hosts into HOROVOD_GLOO_IFACE, by
// chance, and all of them into NCCL_SOCKET_IFNAME.
LauncherInterface launcher_interface(const Getenv& environment) {
  auto value = [&](const char* name) {
    const char* set = lookup(environment, name);
    return std::string(set ? set : "");
  };
  std::string horovod = value("HOROVOD_GLOO_IFACE"), gloo = value("GLOO_SOCKET_IFNAME"),
              nccl = value("NCCL_SOCKET_IFNAME");
  bool in_list = ("," + nccl + ",").find("," + horovod + ",") != std::string::npos;
  if (!horovod.empty() && in_list) return {"NCCL_SOCKET_IFNAME", "=" + nccl};
  if (!horovod.empty()) return {"HOROVOD_GLOO_IFACE", "=" + horovod};
  if (!gloo.empty()) return {"GLOO_SOCKET_IFNAME", "=" + gloo};
  return {"NCCL_SOCKET_IFNAME", nccl};
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

// Names that belong to ringcoll but are no knobs of the library.
constexpr std::string_view kOtherNames[] = {"RINGCOLL_STORE", "RINGCOLL_LIBRARY"};

}  // namespace

Config read_config(const Getenv& environment) {
  Config config;
  config.launcher_interface = launcher_interface(environment);
  for (const Row& row : table()) {
    const char* set = lookup(environment, row.name);
    std::string text = set && *set ? set : row.default_value;
    check(assign(row, text, &config), Code::kInvalidArgument,
          "{}=\"{}\" is not a value of type {} in its range: {}. Default: \"{}\"", row.name, text,
          type_of(row), range_of(row), row.default_value);
  }
  return config;
}

std::vector<Knob> describe_knobs(const Getenv& environment) {
  std::vector<Knob> knobs;
  for (const Row& row : table()) {
    const char* set = lookup(environment, row.name);
    bool secret = std::string_view(row.name) == "RINGCOLL_SECRET";
    std::string value = set && *set ? (secret ? "(set)" : set) : row.default_value;
    knobs.push_back({row.name, type_of(row), row.default_value, range_of(row), row.help, value});
  }
  return knobs;
}

std::vector<std::string> unknown_knobs(std::span<const std::string> names) {
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    bool known = std::ranges::count(kOtherNames, std::string_view(name)) > 0 ||
                 std::ranges::any_of(table(), [&](const Row& row) { return name == row.name; });
    if (known || !name.starts_with("RINGCOLL_")) continue;
    auto nearest = std::ranges::min_element(
        table(), {}, [&](const Row& row) { return edit_distance(name, row.name); });
    warnings.push_back(
        fmt::format("{} is set but is no knob of ringcoll; the nearest is {}. It has no effect",
                    name, nearest->name));
  }
  return warnings;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; entry++) {
    std::string_view text(*entry);
    if (text.starts_with("RINGCOLL_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

}  // namespace ringcoll
