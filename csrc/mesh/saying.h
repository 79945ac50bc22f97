// What ranks say to one another in the rounds of a meeting: bytes, every length checked. Short, for
// each rank reads it of all others.
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

/// What this library is: its version, "+", and a digest of the sources that it was built from.
const std::string& own_release();

/// First round: who and where a rank is.
struct Introduction {
  std::string release;  // own_release()
  std::string failure;  // why this rank cannot go on (with_failure()); "": it can
  std::string location;
  std::string offers;
  bool more_may_come = false;  // it has a network card that is no offer yet
  bool is_last = false;        // rank 0 waits for no more networks
  uint64_t group_bytes = 0;
  std::string costs_file, costs;  // RINGCOLL_COSTS and what is in it
  std::string agreed;             // its agreed_values()
  std::string secret;             // of rank 0, for all, if RINGCOLL_SECRET is not set

  std::string encode() const;
  /// Looks at the release first. Ranks of different releases, or builds, may cut and order their
  /// calls in different ways, though they understand one another. Throws Error(kTransport) naming
  /// `rank`.
  static void check_release(std::string_view bytes, Rank rank, Rank own);
  /// After that. Throws Error(kTransport).
  static Introduction decode(std::string_view bytes);
};

/// The values of the knobs that the table says are agreed (Agreement::kAgreed), in its order.
std::string agreed_values(const Config& config);
/// That what `rank`, which is on `host`, says of them is what rank 0 says. Throws
/// Error(kInvalidArgument) that names the first that differs, both values and both ranks, or
/// Error(kTransport) where that cannot be read.
void check_agreed(std::string_view first, std::string_view theirs, Rank rank,
                  std::string_view host);

/// In each later round: this, or what a rank raises, as the others are to raise it.
std::string with_failure(const std::optional<Error>& failure, std::string_view said);
/// Without it. Throws the failure.
std::string_view without_failure(std::string_view bytes, Rank rank);

/// Second round: how a rank is reached by each of its transports, and what it found out about the
/// networks.
struct Addresses {
  std::map<std::string, std::string, std::less<>> of_transport;
  std::string networks;

  std::string encode() const;
  static Addresses decode(std::string_view bytes);  // throws Error(kTransport)
};

/// Third round: what a rank reaches, and why it does not reach some others.
struct Answer {
  Reached reached;
  std::map<Rank, std::string> why;

  std::string encode() const;
  static Answer decode(std::string_view bytes, Rank size);  // throws Error(kTransport)
};

/// Fourth round: what a rank measured, by level.
std::string encode_samples(const std::vector<LevelSamples>& samples);
/// Throws Error(kTransport) unless it is of so many levels.
std::vector<LevelSamples> decode_samples(std::string_view bytes, size_t levels, Rank rank);

}  // namespace ringcoll
