#include "coll/mismatch.h"

#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

namespace ringcoll {
namespace {

bool knows_details(const Made& made) { return made.details || made.signature.details == 0; }
Details details_of(const Made& made) { return made.details.value_or(Details{}); }

/// The values of one detail at two ranks, as text.
struct Detail {
  const char* name;
  std::string a, b;
};

std::vector<Detail> differences(const Made& a, const Made& b) {
  if (!knows_details(a) || !knows_details(b)) return {};
  Details x = details_of(a), y = details_of(b);
  auto number = [](double value) { return fmt::format("{}", value); };
  auto counts = [](const std::string& text) { return text.empty() ? "all equal" : text; };
  std::vector<Detail> found;
  if (x.prescale != y.prescale)
    found.push_back({"prescale", number(x.prescale), number(y.prescale)});
  if (x.postscale != y.postscale)
    found.push_back({"postscale", number(x.postscale), number(y.postscale)});
  if (x.counts != y.counts) found.push_back({"counts", counts(x.counts), counts(y.counts)});
  return found;
}

std::string what_differs(const Made& a, const Made& b) {
  const Signature &x = a.signature, &y = b.signature;
  if (x.sequence != y.sequence) return "the order of calls";
  if (x.collective != y.collective) return "the collective";
  std::vector<std::string> names;
  if (x.count != y.count) names.emplace_back("the count");
  if (x.dtype != y.dtype) names.emplace_back("the type");
  if (x.op != y.op) names.emplace_back("the op");
  if (x.root != y.root) names.emplace_back("the root");
  if (x.details != y.details) {
    std::vector<Detail> found = differences(a, b);
    for (const Detail& each : found) names.push_back(fmt::format("the {}", each.name));
    if (found.empty()) names.emplace_back("factors or counts");
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

bool are_alike(const Signature& a, const Signature& b) {
  Signature numbered = b;
  numbered.sequence = a.sequence;
  return a == numbered;
}

std::string describe(const Made& made, const Made& other) {
  std::string text = fmt::format("rank {} runs {}", made.rank, describe(made.signature));
  if (made.signature.details == other.signature.details) return text;
  std::vector<Detail> found = differences(made, other);
  for (const Detail& each : found) text += fmt::format(", {} {}", each.name, each.a);
  if (found.empty())
    text +=
        made.signature.details == 0 ? ", without factors or counts" : ", with factors or counts";
  return text;
}

Error mismatch(const Made& a, const Made& b, Rank blamed) {
  const Made &first = a.rank < b.rank ? a : b, &second = a.rank < b.rank ? b : a;
  return {Code::kMismatch,
          fmt::format("ranks disagree about {}: {}; {}: all ranks must make the same calls, with "
                      "the same arguments, in the same order",
                      what_differs(a, b), describe(first, second), describe(second, first)),
          blamed};
}

Error split_mismatch(const Signature& alltoall, Share sent, Share expected, Rank blamed) {
  return {
      Code::kMismatch,
      fmt::format("ranks disagree about the splits of {}: rank {} sends {} elements to rank {}, "
                  "which expects {}: the counts of the one must be the recv_counts of the other",
                  describe(alltoall), sent.rank, sent.count, expected.rank, expected.count),
      blamed};
}

}  // namespace ringcoll
