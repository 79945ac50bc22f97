#include "table/spec.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_depth.h"

namespace ringcoll {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 3;
constexpr size_t kMostName = 255;
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr int64_t kMostClocks = int64_t{1} << 31;
/// A row should be long enough that what is stored beside it does not matter.
constexpr int64_t kElementsOfRow = 16384;
constexpr std::array kFields = {"name",    "dtype",    "shape",     "row_shape",
                                "stretch", "rule",     "staleness", "quorum",
                                "grace_s", "max_rows", "evict",     "initial"};
constexpr std::array kEvicts = {"age", "use"};

/// Replaces the invalid bytes of strings.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void refuse(std::string_view field, const Json& json, std::string_view wanted) {
  throw Error(Code::kInvalidArgument,
              fmt::format("table: {} is {}: it must be {}", field, text_of(json), wanted));
}

/// Null if the field is left out.
const Json& field_of(const Json& json, std::string_view field) {
  static const Json null;
  const auto found = json.find(field);
  return found == json.end() ? null : *found;
}

/// The integer, if it is one of that range.
std::optional<int64_t> integer_of(const Json& json, int64_t least, int64_t most) {
  const bool too_large = json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX;
  if (!json.is_number_integer() || too_large) return std::nullopt;
  const auto number = json.get<int64_t>();
  return number >= least && number <= most ? std::optional(number) : std::nullopt;
}

/// Nothing if it is left out or null.
std::optional<int64_t> read_integer(const Json& json, std::string_view field, int64_t least,
                                    int64_t most) {
  const Json& found = field_of(json, field);
  if (found.is_null()) return std::nullopt;
  const auto number = integer_of(found, least, most);
  if (!number) refuse(field, found, fmt::format("an integer from {} to {}, or null", least, most));
  return number;
}

double read_number(const Json& json, std::string_view field, double least) {
  const Json& found = field_of(json, field);
  const bool fits = found.is_number() && std::isfinite(found.get<double>());
  if (!fits || found.get<double>() < least)
    refuse(field, found, least == 0 ? "a finite number of at least 0" : "a finite number");
  return found.get<double>();
}

std::string read_name(const Json& json) {
  const Json& found = field_of(json, "name");
  if (!found.is_string() || found.get_ref<const std::string&>().empty() ||
      found.get_ref<const std::string&>().size() > kMostName)
    refuse("name", found, fmt::format("a text of 1 to {} bytes", kMostName));
  return found.get<std::string>();
}

DataType read_dtype(const Json& json) {
  const Json& found = field_of(json, "dtype");
  std::vector<std::string> names;
  for (int dtype = 0; dtype < RC_DTYPE_COUNT; dtype++) {
    names.emplace_back(name_of(static_cast<DataType>(dtype)));
    if (found == names.back()) return static_cast<DataType>(dtype);
  }
  refuse("dtype", found, fmt::format("one of: {}", fmt::join(names, ", ")));
}

std::vector<int64_t> read_shape(const Json& json, std::string_view field) {
  const Json& found = field_of(json, field);
  const std::string wanted =
      fmt::format("an array of integers of at least 1, whose product is at most {}", kMostElements);
  if (!found.is_array()) refuse(field, found, wanted);
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const Json& one : found) {
    const auto length = integer_of(one, 1, kMostElements / elements);
    if (!length) refuse(field, found, wanted);
    shape.push_back(*length);
    elements *= *length;
  }
  return shape;
}

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t elements = 1;
  for (size_t i = from; i < shape.size(); i++) elements *= shape[i];
  return elements;
}

void read_shapes(const Json& json, TableSpec& spec) {
  check(json.contains("shape") != json.contains("row_shape"), Code::kInvalidArgument,
        "table {}: it must have either a shape, and is dense, or a row_shape, and is sparse",
        spec.name);
  spec.is_sparse = json.contains("row_shape");
  spec.shape = read_shape(json, spec.is_sparse ? "row_shape" : "shape");
  const auto stretch = read_integer(json, "stretch", 1, kMostElements);
  check(!stretch || !spec.is_sparse, Code::kInvalidArgument,
        "table {}: stretch is {}: a sparse table has none", spec.name, stretch.value_or(0));
  if (!spec.is_sparse)
    spec.stretch = stretch.value_or(std::max<int64_t>(1, kElementsOfRow / product(spec.shape, 1)));
}

Rule read_rule(const Json& json, const TableSpec& spec) {
  const Json& found = field_of(json, "rule");
  if (!found.is_object()) refuse("rule", found, "an object, such as {\"rule\": \"sum\"}");
  try {
    Rule rule = Rule::parse(found.dump());
    rule.check_push(spec.dtype, spec.dtype, 1);
    return rule;
  } catch (const Error& error) {
    throw error.within(fmt::format("table {}", spec.name));
  }
}

/// A field that means nothing without another one.
void check_wanted(const Json& json, const char* field, const char* other) {
  check(field_of(json, field).is_null() || !field_of(json, other).is_null(), Code::kInvalidArgument,
        "table: {} is {}, and {} is not given: {} wants a {}", field,
        text_of(field_of(json, field)), other, field, other);
}

void read_consistency(const Json& json, TableSpec& spec) {
  spec.staleness = read_integer(json, "staleness", 0, kMostClocks);
  spec.quorum = read_integer(json, "quorum", 1, kMostClocks);
  check_wanted(json, "quorum", "staleness");
  check_wanted(json, "grace_s", "quorum");
  if (!field_of(json, "grace_s").is_null()) spec.grace_s = read_number(json, "grace_s", 0);
}

void read_eviction(const Json& json, TableSpec& spec) {
  spec.max_rows = read_integer(json, "max_rows", 1, kMostRows);
  check(!spec.max_rows || spec.is_sparse, Code::kInvalidArgument,
        "table {}: max_rows is {}: a dense table has none", spec.name, spec.max_rows.value_or(0));
  check_wanted(json, "evict", "max_rows");
  const Json& found = field_of(json, "evict");
  if (found == kEvicts[1])
    spec.evict = Evict::kUse;
  else if (!found.is_null() && found != kEvicts[0])
    refuse("evict", found, R"("age" or "use")");
}

// ---- the first values

/// The fields of a kind, besides "kind" and the seed of random numbers.
struct KindFields {
  const char* name;
  const char* first;
  const char* second;
};
constexpr std::array<KindFields, 4> kKinds = {{{"zeros", nullptr, nullptr},
                                               {"constant", "value", nullptr},
                                               {"uniform", "low", "high"},
                                               {"normal", "mean", "std"}}};

bool is_field(const KindFields& kind, const std::string& name) {
  return name == "kind" || (kind.first && name == kind.first) ||
         (kind.second && (name == kind.second || name == "seed"));
}

Initial read_initial(const Json& json, DataType dtype) {
  const Json& object = field_of(json, "initial");
  if (object.is_null()) return {};
  const Json& name = object.is_object() ? field_of(object, "kind") : object;
  const auto kind = std::ranges::find_if(kKinds, [&](const auto& one) { return name == one.name; });
  if (!object.is_object() || kind == kKinds.end())
    refuse("initial", object,
           R"(an object whose "kind" is "zeros", "constant", "uniform" or "normal")");
  for (const auto& [field, unused] : object.items())
    if (!is_field(*kind, field))
      refuse("initial", object,
             fmt::format("without {}, which {} does not have", field, name.dump()));
  Initial initial{.kind = static_cast<Initial::Kind>(kind - kKinds.begin())};
  if (kind->first) initial.first = read_number(object, kind->first, -INFINITY);
  if (kind->second) {
    const bool is_normal = initial.kind == Initial::Kind::kNormal;
    initial.second = read_number(object, kind->second, is_normal ? 0 : -INFINITY);
    const auto seed = read_integer(object, "seed", 0, INT64_MAX);
    initial.seed = static_cast<uint64_t>(seed.value_or(0));
  }
  if (initial.kind == Initial::Kind::kUniform && initial.first > initial.second)
    refuse("initial", object, "such that low is at most high");
  if (!initial.fits(dtype))
    refuse("initial", object,
           fmt::format("such that its numbers are values of {}", name_of(dtype)));
  return initial;
}

Json json_of(const Initial& initial) {
  const KindFields& kind = kKinds.at(static_cast<size_t>(initial.kind));
  Json object = {{"kind", kind.name}};
  if (kind.first) object[kind.first] = initial.first;
  if (kind.second) {
    object[kind.second] = initial.second;
    object["seed"] = initial.seed;
  }
  return object;
}

Json json_of(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); }

}  // namespace

TableSpec TableSpec::parse(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text, no_deeper_than(kMostDepth, "a table"));
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument, fmt::format("a table is not JSON: {}", error.what()));
  }
  check(json.is_object(), Code::kInvalidArgument, "a table is {}: it must be an object",
        text_of(json));
  for (const auto& [field, unused] : json.items())
    check(std::ranges::find(kFields, field) != kFields.end(), Code::kInvalidArgument,
          "table: {} is no field of it; its fields are: {}", text_of(field),
          fmt::join(kFields, ", "));
  TableSpec spec;
  spec.name = read_name(json);
  spec.dtype = read_dtype(json);
  read_shapes(json, spec);
  spec.rule = read_rule(json, spec);
  const bool is_whole = spec.rule.custom() && !spec.is_sparse && !json.contains("stretch");
  if (is_whole && !spec.shape.empty()) spec.stretch = spec.shape[0];
  read_consistency(json, spec);
  read_eviction(json, spec);
  spec.initial = read_initial(json, spec.dtype);
  return spec;
}

std::string TableSpec::json() const {
  Json json = {{"name", name}, {"dtype", name_of(dtype)}};
  json[is_sparse ? "row_shape" : "shape"] = shape;
  if (!is_sparse) json["stretch"] = stretch;
  json["rule"] = Json::parse(rule.json());
  json["staleness"] = json_of(staleness);
  json["quorum"] = json_of(quorum);
  if (quorum) json["grace_s"] = grace_s;
  json["max_rows"] = json_of(max_rows);
  if (max_rows) json["evict"] = kEvicts.at(static_cast<size_t>(evict));
  json["initial"] = json_of(initial);
  return json.dump();
}

int64_t TableSpec::row_count() const {
  const int64_t leading = shape.empty() ? 1 : shape[0];
  return (leading - 1) / stretch + 1;
}

int64_t TableSpec::most_elements() const {
  if (is_sparse) return product(shape, 0);
  return std::min(stretch, shape.empty() ? 1 : shape[0]) * product(shape, 1);
}

int64_t TableSpec::elements(int64_t id) const {
  if (is_sparse) return product(shape, 0);
  const int64_t leading = shape.empty() ? 1 : shape[0];
  return std::min(stretch, leading - id * stretch) * product(shape, 1);
}

}  // namespace ringcoll
