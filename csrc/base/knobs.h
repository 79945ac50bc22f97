// The knobs: every RINGCOLL_* variable is a row, which says what it may be, whose it is and whether
// ranks may differ. Rows of the library's own layers are in core_knobs.cc; a transport has its own
// beside it, in its row of the registry; transport/knobs.h joins them to the one table, from which
// docs/knobs.md is made (docs/contributing.md, "A knob").
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
  kRankZero,  // rank 0's counts: whose knob it is, sees to it; others have the same or none
  kOwn,       // each rank goes by its own
};
/// "agreed", "rank 0's", "own".
constexpr std::string_view name_of(Agreement agreement) {
  constexpr std::array<std::string_view, 3> kNames = {"agreed", "rank 0's", "own"};
  return kNames[static_cast<size_t>(agreement)];
}

/// What a knob may be, and the field that it is read into.
namespace knob {
struct Text {
  std::string Config::* field;
  std::vector<std::string> allowed = {};  // empty: anything
  bool secret = false;                    // is never shown, nor said to another rank
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
  std::string type;  // string, integer, bytes, seconds, boolean
  std::string default_value;
  std::string range;  // "1 to 86400", or the words allowed
  std::string help;
  std::string value;  // in force in `environment`; of a secret only whether there is one
};

/// Looks a variable up; null if it is not set. The default is the process's environment.
using Getenv = std::function<const char*(const char*)>;

/// Some rows. Constant, so any thread may use it.
class KnobTable {
 public:
  explicit KnobTable(std::vector<KnobRow> rows) : rows_(std::move(rows)) {}

  const std::vector<KnobRow>& rows() const { return rows_; }
  /// Reads all; fields of knobs that are not in the table stay as they are in a new Config. Throws
  /// Error(kInvalidArgument) that names the knob, the value and the range.
  Config read(const Getenv& environment = {}) const;
  /// The same, but knobs with such values are left at their defaults, and the first is told.
  Config read(const Getenv& environment, std::optional<Error>* refused) const;
  /// The rows with the values in force.
  std::vector<Knob> describe(const Getenv& environment = {}) const;
  /// For each name that begins with RINGCOLL_ and is not a knob: a warning that names the nearest.
  std::vector<std::string> unknown(std::span<const std::string> names) const;

 private:
  std::vector<KnobRow> rows_;
};

/// All that are no transport's, but for RINGCOLL_TRANSPORT, whose words are the transports.
const std::vector<KnobRow>& core_knobs();
/// As the variable would say it, in one way for equal values ("64M"); of a secret only whether
/// there is one.
std::string value_of(const KnobRow& row, const Config& config);
/// Names of all variables of the process's environment that begin with RINGCOLL_.
std::vector<std::string> environment_names();

}  // namespace ringcoll
