// The knobs: every RINGCOLL_* variable is a row that says its range, its owner and whether ranks
// may differ. Rows of the library's own layers are in core_knobs.cc. A transport has its rows
// beside it, and its row of the registry names them. The header transport/knobs.h joins all rows to
// one table. From that table docs/knobs.md is made (docs/contributing.md, "A knob").
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/config.h"
#include "base/error.h"

namespace ringcoll {

/// Whether the ranks of a job may have different values.
enum class Agreement : uint8_t {
  kAgreed,    // the same on all ranks, or an error on all ranks (mesh/saying.h, check_agreed)
  kRankZero,  // rank 0's value counts, which the knob's owner sees to; others have the same or none
  kOwn,       // each rank uses its own
};
/// "agreed", "rank 0's", "own".
constexpr std::string_view name_of(Agreement agreement) {
  constexpr std::array<std::string_view, 3> kNames = {"agreed", "rank 0's", "own"};
  return kNames[static_cast<size_t>(agreement)];
}

/// The kinds of knobs: which values are allowed, and the field that the value is read into.
namespace knob {
struct Text {
  std::string Config::* field;
  std::vector<std::string> allowed = {};  // empty: anything
  bool secret = false;                    // never shown, nor sent to another rank
};
struct Integer {
  int64_t Config::* field;
  int64_t least, most;
};
/// An integer that takes the suffixes K, M and G, powers of 1024.
struct Bytes {
  int64_t Config::* field;
  int64_t least, most;
};
struct Seconds {
  double Config::* field;
  double least, most;
};
using Kind = std::variant<Text, Integer, Bytes, Seconds>;

inline constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
}  // namespace knob

struct KnobRow {
  const char* name;        // RINGCOLL_TIMEOUT_S
  std::string_view owner;  // the folder of csrc/, or the transport, that reads it
  Agreement agreement;
  knob::Kind kind;
  const char* default_value;
  const char* help;
};

/// One row as text, for `ringcoll info` and docs/knobs.md.
struct Knob {
  std::string name, owner, agreement;
  std::string type;  // string, integer, bytes, seconds
  std::string default_value;
  std::string range;  // "1 to 86400", or the words allowed
  std::string help;
  std::string value;  // in force; of a secret only "(set)"
};

/// Looks a variable up; null if it is not set. An empty function means the process's environment.
using Getenv = std::function<const char*(const char*)>;

/// A table of knobs. It is constant, so any thread may use it.
class KnobTable {
 public:
  explicit KnobTable(std::vector<KnobRow> rows) : rows_(std::move(rows)) {}

  const std::vector<KnobRow>& rows() const { return rows_; }
  /// Reads all knobs of the table. Other fields stay as they are in a new Config. Throws
  /// Error(kInvalidArgument) that names the knob, the value and the range.
  Config read(const Getenv& environment = {}) const;
  /// The same, but leaves a knob with such a value at its default, and stores the first error in
  /// `*refused`.
  Config read(const Getenv& environment, std::optional<Error>* refused) const;
  /// The rows as text, with the values in force.
  std::vector<Knob> describe(const Getenv& environment = {}) const;
  /// A warning for each name that begins with RINGCOLL_ and is unknown. It names the nearest knob.
  std::vector<std::string> unknown(std::span<const std::string> names) const;

 private:
  std::vector<KnobRow> rows_;
};

/// The knobs that belong to no transport, except RINGCOLL_TRANSPORT, whose values are the
/// transports' names.
const std::vector<KnobRow>& core_knobs();
/// The value as the variable would say it, alike for equal values ("64M"). A secret that is set
/// reads "(set)".
std::string value_of(const KnobRow& row, const Config& config);
/// The names of all variables of the process that begin with RINGCOLL_.
std::vector<std::string> environment_names();

}  // namespace ringcoll
