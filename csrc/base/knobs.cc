#include "base/knobs.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/error.h"

namespace ringcoll {
namespace {

// Names that belong to ringcoll but are no knobs of the library.
constexpr std::string_view kOtherNames[] = {"RINGCOLL_STORE", "RINGCOLL_LIBRARY", "RINGCOLL_KEY",
                                            "RINGCOLL_MXNET", "RINGCOLL_MXNET_REPLICAS"};
// Shown in place of a secret.
constexpr const char* kSet = "(set)";

using knob::kGiB;
using knob::kKiB;
using knob::kMiB;

const char* type_of(const knob::Text&) { return "string"; }
const char* type_of(const knob::Integer&) { return "integer"; }
const char* type_of(const knob::Bytes&) { return "bytes"; }
const char* type_of(const knob::Seconds&) { return "seconds"; }

std::string range_of(const knob::Text& kind) {
  return kind.allowed.empty() ? "any" : fmt::format("{}", fmt::join(kind.allowed, ", "));
}
template <typename Number>
std::string range_of(const Number& kind) {
  return fmt::format("{} to {}", kind.least, kind.most);
}

template <typename Value>
std::optional<Value> parse_number(std::string_view text, std::string_view* rest) {
  Value value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return {};
  *rest = std::string_view(end, text.data() + text.size() - end);
  return value;
}

std::optional<int64_t> parse(const knob::Integer&, std::string_view text) {
  std::string_view rest;
  auto value = parse_number<int64_t>(text, &rest);
  return rest.empty() ? value : std::nullopt;
}

std::optional<int64_t> parse(const knob::Bytes&, std::string_view text) {
  int64_t unit = 0;
  std::string_view suffix;
  auto value = parse_number<int64_t>(text, &suffix);
  if (suffix.empty()) unit = 1;
  if (suffix == "K" || suffix == "KiB") unit = kKiB;
  if (suffix == "M" || suffix == "MiB") unit = kMiB;
  if (suffix == "G" || suffix == "GiB") unit = kGiB;
  if (!value || unit == 0 || *value == INT64_MIN || std::abs(*value) > INT64_MAX / unit) return {};
  return *value * unit;
}

std::optional<double> parse(const knob::Seconds&, std::string_view text) {
  std::string_view rest;
  auto value = parse_number<double>(text, &rest);
  return value && rest.empty() && std::isfinite(*value) ? value : std::nullopt;
}

// False if the text is not an allowed value of that kind.
bool assign(const knob::Text& kind, const std::string& text, Config* config) {
  config->*kind.field = text;
  return kind.allowed.empty() || std::ranges::count(kind.allowed, text) > 0;
}
template <typename Number>
bool assign(const Number& kind, const std::string& text, Config* config) {
  auto value = parse(kind, text);
  if (value) config->*kind.field = *value;
  return value && *value >= kind.least && *value <= kind.most;
}

std::string text_of(const knob::Text& kind, const Config& config) {
  const std::string& value = config.*kind.field;
  return kind.secret && !value.empty() ? kSet : value;
}
std::string text_of(const knob::Bytes& kind, const Config& config) {
  int64_t value = config.*kind.field;
  for (auto [unit, suffix] : {std::pair(kGiB, "G"), {kMiB, "M"}, {kKiB, "K"}})
    if (value != 0 && value % unit == 0) return fmt::format("{}{}", value / unit, suffix);
  return fmt::format("{}", value);
}
template <typename Number>
std::string text_of(const Number& kind, const Config& config) {
  return fmt::format("{}", config.*kind.field);
}

// The same for a row, by its kind.
const char* type_of(const KnobRow& row) {
  return std::visit([](const auto& kind) { return type_of(kind); }, row.kind);
}
std::string range_of(const KnobRow& row) {
  return std::visit([](const auto& kind) { return range_of(kind); }, row.kind);
}
bool assign(const KnobRow& row, const std::string& text, Config* config) {
  return std::visit([&](const auto& kind) { return assign(kind, text, config); }, row.kind);
}
bool is_secret(const KnobRow& row) {
  auto* text = std::get_if<knob::Text>(&row.kind);
  return text && text->secret;
}

const char* lookup(const Getenv& environment, const char* name) {
  return environment ? environment(name) : std::getenv(name);
}

// horovodrun finds the interfaces that join the hosts. It puts one of them, by chance, into
// HOROVOD_GLOO_IFACE, and all of them into NCCL_SOCKET_IFNAME.
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

}  // namespace

Config KnobTable::read(const Getenv& environment) const {
  std::optional<Error> refused;
  Config config = read(environment, &refused);
  if (refused) throw Error(*refused);
  return config;
}

Config KnobTable::read(const Getenv& environment, std::optional<Error>* refused) const {
  Config config;
  config.launcher_interface = launcher_interface(environment);
  for (const KnobRow& row : rows_) {
    const char* set = lookup(environment, row.name);
    std::string text = set && *set ? set : row.default_value;
    if (assign(row, text, &config)) continue;
    assign(row, row.default_value, &config);
    if (!*refused)
      *refused =
          Error(Code::kInvalidArgument,
                fmt::format("{}=\"{}\" is not a value of type {} in its range: {}. Default: \"{}\"",
                            row.name, text, type_of(row), range_of(row), row.default_value));
  }
  return config;
}

std::vector<Knob> KnobTable::describe(const Getenv& environment) const {
  std::vector<Knob> knobs;
  for (const KnobRow& row : rows_) {
    const char* set = lookup(environment, row.name);
    std::string value = set && *set ? (is_secret(row) ? kSet : set) : row.default_value;
    knobs.push_back({.name = row.name,
                     .owner = std::string(row.owner),
                     .agreement = std::string(name_of(row.agreement)),
                     .type = type_of(row),
                     .default_value = row.default_value,
                     .range = range_of(row),
                     .help = row.help,
                     .value = std::move(value)});
  }
  return knobs;
}

std::vector<std::string> KnobTable::unknown(std::span<const std::string> names) const {
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    bool known = std::ranges::count(kOtherNames, std::string_view(name)) > 0 ||
                 std::ranges::any_of(rows_, [&](const KnobRow& row) { return name == row.name; });
    if (known || !name.starts_with("RINGCOLL_")) continue;
    auto nearest = std::ranges::min_element(
        rows_, {}, [&](const KnobRow& row) { return edit_distance(name, row.name); });
    warnings.push_back(
        fmt::format("{} is set, but ringcoll has no such knob, so it has no effect; the nearest "
                    "name is {}",
                    name, nearest->name));
  }
  return warnings;
}

std::string value_of(const KnobRow& row, const Config& config) {
  return std::visit([&](const auto& kind) { return text_of(kind, config); }, row.kind);
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
