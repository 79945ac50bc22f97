// The values that ranks store for each other during an exchange.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace ringcoll {

/// A process that claims a rank. The random token identifies it; the text is for people.
struct Claim {
  std::string token;
  std::string process;

  bool operator==(const Claim&) const = default;
};

/// The value of one rank: which process it is, the size that it expects, and its blob.
struct Record {
  Claim claim;
  Rank size = 0;
  std::string blob;

  std::string encode() const;
  static Record decode(std::string_view bytes);  // throws Error(kTransport)
};

/// The value of rank 0 for all: the records of all ranks, or the error that all raise.
struct Outcome {
  std::vector<Record> records;
  std::optional<Error> error;
  bool is_early = false;  // known before all ranks had come; late ones read it too

  std::string encode() const;
  static Outcome decode(std::string_view bytes);  // throws Error(kTransport)
};

}  // namespace ringcoll
