// What ranks tell each other in the rounds of the start, as bytes; decoders check every length.
// Messages are short, since each rank reads those of all others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "base/types.h"
#include "mesh/reach.h"
#include "topology/costs.h"

namespace ringcoll {

/// The version of this library, "+", and a digest of the sources that it was built from.
const std::string& own_release();

/// First round: who a rank is and where it runs.
struct Introduction {
  std::string release;  // own_release()
  std::string failure;  // why this rank cannot start (with_failure()); "": it can
  std::string location;
  std::string offers;
  bool more_may_come = false;  // it has a network card that is not up yet
  bool is_last = false;        // its deadline is too near for one more round
  uint64_t group_bytes = 0;
  std::string costs_file, costs;  // RINGCOLL_COSTS, and the content of that file
  std::string agreed;             // its agreed_values()
  std::string secret;             // from rank 0 for all, if RINGCOLL_SECRET is not set

  std::string encode() const;
  /// Checks the release, before decode(). Ranks of different releases or builds may cut and order
  /// calls in different ways, even if they understand one another. Throws Error(kTransport) that
  /// names `rank`.
  static void check_release(std::string_view bytes, Rank rank, Rank own);
  /// Precondition: check_release() passed. Throws Error(kTransport).
  static Introduction decode(std::string_view bytes);
};

/// The values of all knobs that must be equal on all ranks (Agreement::kAgreed), in the order of
/// the table of knobs.
std::string agreed_values(const Config& config);
/// Checks that `rank`, which runs on `host`, has the same agreed values as rank 0. Throws
/// Error(kInvalidArgument) that names the first difference, both values and both ranks, or
/// Error(kTransport) if the bytes cannot be read.
void check_agreed(std::string_view first, std::string_view theirs, Rank rank,
                  std::string_view host);

/// The message of a rank in each later round: `said`, or the failure that the others are to raise.
std::string with_failure(const std::optional<Error>& failure, std::string_view said);
/// Returns what was said. Throws the failure.
std::string_view without_failure(std::string_view bytes, Rank rank);

/// Second round: the addresses of a rank's transports, and its findings about the networks.
struct Addresses {
  std::map<std::string, std::string, std::less<>> of_transport;
  std::string networks;

  std::string encode() const;
  static Addresses decode(std::string_view bytes);  // throws Error(kTransport)
};

/// Third round: what a rank reaches, and why it does not reach some of the others.
struct Answer {
  Reached reached;
  std::map<Rank, std::string> why;

  std::string encode() const;
  static Answer decode(std::string_view bytes, Rank size);  // throws Error(kTransport)
};

/// Fourth round: what a rank measured, by level.
std::string encode_samples(const std::vector<LevelSamples>& samples);
/// Throws Error(kTransport) unless the bytes hold `levels` levels.
std::vector<LevelSamples> decode_samples(std::string_view bytes, size_t levels, Rank rank);

}  // namespace ringcoll
