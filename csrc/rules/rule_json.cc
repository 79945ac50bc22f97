// Rules from and to JSON.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_depth.h"
#include "rules/fields.h"
#include "rules/rule.h"

namespace ringcoll {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 2;

template <typename... Kinds>
std::vector<std::string_view> names_of(const std::variant<Kinds...>*) {
  return {Fields<Kinds>::kName...};
}

/// Replaces the invalid bytes of strings.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void refuse(const char* rule, std::string_view name, const Json& json,
                         std::string_view wanted) {
  throw Error(Code::kInvalidArgument,
              fmt::format("rule {}: {} is {}: it must be {}", rule, name, text_of(json), wanted));
}

// Ranges are checked later, when the rule is made of its parameters.

void read(const char* rule, std::string_view name, Allowed allowed, const Json& json, double& out) {
  if (!json.is_number()) refuse(rule, name, json, text_of(allowed));
  out = json.get<double>();
}

void read(const char* rule, std::string_view name, Allowed allowed, const Json& json,
          std::array<double, 2>& out) {
  if (!json.is_array() || json.size() != out.size())
    refuse(rule, name, json, fmt::format("an array of two: each {}", text_of(allowed)));
  for (size_t i = 0; i < out.size(); i++)
    read(rule, fmt::format("{}[{}]", name, i), allowed, json[i], out[i]);
}

void read(const char* rule, std::string_view name, Allowed, const Json& json, bool& out) {
  if (!json.is_boolean()) refuse(rule, name, json, "true or false");
  out = json.get<bool>();
}

constexpr std::array kMergings = {"last", "sum"};  // in the order of Merging

void read(const char* rule, std::string_view name, Allowed, const Json& json, rules::Merging& out) {
  const auto found = std::ranges::find_if(kMergings, [&](const char* one) { return json == one; });
  if (found == kMergings.end()) refuse(rule, name, json, R"("last" or "sum")");
  out = static_cast<rules::Merging>(found - kMergings.begin());
}

void read(const char* rule, std::string_view name, Allowed, const Json& json, std::string& out) {
  if (!json.is_string()) refuse(rule, name, json, "a text");
  out = json.get<std::string>();
}

template <typename Value>
Json json_of(const Value& value) {
  return value;
}
Json json_of(rules::Merging combine) { return kMergings.at(static_cast<size_t>(combine)); }

template <typename Parameters>
Parameters read_parameters(const Json& json) {
  constexpr const char* kName = Fields<Parameters>::kName;
  Parameters parameters;
  std::vector<std::string_view> known;
  each_field(parameters, [&](const auto& field, auto& value) {
    known.push_back(field.name);
    if (auto found = json.find(field.name); found != json.end())
      read(kName, field.name, field.allowed, *found, value);
  });
  for (const auto& [name, unused] : json.items())
    check(name == "rule" || std::ranges::find(known, std::string_view(name)) != known.end(),
          Code::kInvalidArgument, "rule {}: {} is no parameter of it; its parameters are: {}",
          kName, text_of(name), known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  return parameters;
}

template <typename... Kinds>
Rule::Parameters read_kind(const Json& json, const std::variant<Kinds...>* kinds) {
  const auto found = json.find("rule");
  const Json name = found == json.end() ? Json() : *found;
  Rule::Parameters parameters;
  const bool is_known =
      ((name == Fields<Kinds>::kName && (parameters = read_parameters<Kinds>(json), true)) || ...);
  check(is_known, Code::kInvalidArgument, "rule is {}: it must be one of: {}", text_of(name),
        fmt::join(names_of(kinds), ", "));
  return parameters;
}

}  // namespace

Rule Rule::parse(std::string_view json) {
  Json object;
  try {
    object = Json::parse(json, no_deeper_than(kMostDepth, "a rule"));
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument, fmt::format("a rule is not JSON: {}", error.what()));
  }
  check(object.is_object(), Code::kInvalidArgument,
        "a rule is {}: it must be an object, such as {{\"rule\": \"sum\"}}", text_of(object));
  return Rule(read_kind(object, static_cast<const Parameters*>(nullptr)));
}

std::string Rule::json() const {
  Json object = {{"rule", name()}};
  std::visit(
      [&](const auto& parameters) {
        each_field(parameters, [&](const auto& field, const auto& value) {
          object[std::string(field.name)] = json_of(value);
        });
      },
      parameters_);
  return object.dump();
}

}  // namespace ringcoll
