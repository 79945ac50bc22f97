#include "topology/hostlist.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace ringcoll {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view digits_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_digit(text[end])) end++;
  return text.substr(at, end - at);
}

// Appends the numbers of "001-004" or "7". Each is at least as wide as the first one.
void expand_range(std::string_view range, std::string_view list, std::vector<std::string>* out) {
  std::string_view first = digits_at(range, 0), last = first;
  if (first.size() < range.size() && range[first.size()] == '-')
    last = digits_at(range, first.size() + 1);
  size_t written = last.data() + last.size() - range.data();
  uint64_t from = 0, to = 0;
  auto read = [](std::string_view digits, uint64_t* value) {
    return !digits.empty() &&
           std::from_chars(digits.data(), digits.data() + digits.size(), *value).ec == std::errc();
  };
  check(written == range.size() && read(first, &from) && read(last, &to) && from <= to,
        Code::kInvalidArgument, "\"{}\" in \"{}\" is no range such as 001-004", range, list);
  check(to - from < kMaxListedHosts - out->size(), Code::kInvalidArgument,
        "\"{}\" has more than {} hosts", list, kMaxListedHosts);
  for (uint64_t number = from; number <= to; number++)
    out->push_back(fmt::format("{:0{}}", number, first.size()));
}

// Expands one name: the product of its brackets, of which the last one varies fastest.
std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  std::vector<std::string> names = {""};
  while (!name.empty()) {
    size_t open = std::min(name.find('['), name.size());
    for (std::string& begun : names) begun += name.substr(0, open);
    name.remove_prefix(open);
    if (name.empty()) break;
    size_t close = name.find(']');
    check(close != std::string_view::npos && close > 1, Code::kInvalidArgument,
          "\"{}\": a bracket is empty or not closed", list);
    std::vector<std::string> numbers, longer;
    for (std::string_view range : split_outside_brackets(name.substr(1, close - 1), ','))
      expand_range(range, list, &numbers);
    check(numbers.size() <= kMaxListedHosts / names.size(), Code::kInvalidArgument,
          "\"{}\" has more than {} hosts", list, kMaxListedHosts);
    for (const std::string& begun : names)
      for (const std::string& number : numbers) longer.push_back(begun + number);
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator,
                                                     size_t most) {
  std::vector<std::string_view> parts;
  bool inside = false;
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && parts.size() + 1 != most; at++) {
    if (text[at] == '[') inside = true;
    if (text[at] == ']') inside = false;
    if (inside || text[at] != separator) continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string> expand_hostlist(std::string_view list) {
  std::vector<std::string> hosts;
  for (std::string_view name : split_outside_brackets(list, ',')) {
    check(!name.empty() && name.find(']') >= name.find('['), Code::kInvalidArgument,
          "\"{}\" is no list of hosts such as n[001-004,7],login", list);
    for (std::string& host : expand_name(name, list)) hosts.push_back(std::move(host));
    check(hosts.size() <= kMaxListedHosts, Code::kInvalidArgument, "\"{}\" has more than {} hosts",
          list, kMaxListedHosts);
  }
  return hosts;
}

bool natural_less(std::string_view a, std::string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      i++, j++;
      continue;
    }
    std::string_view x = digits_at(a, i), y = digits_at(b, j);
    i += x.size(), j += y.size();
    x.remove_prefix(std::min(x.find_first_not_of('0'), x.size()));
    y.remove_prefix(std::min(y.find_first_not_of('0'), y.size()));
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // n07 and n7 are equal as numbers; any fixed order serves
}

}  // namespace ringcoll
