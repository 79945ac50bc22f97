// What ranks leave in a store for each other during an exchange.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace ringcoll {

/// A process that claims a rank: a random token tells it from any other, the text is for people.
struct Claim {
  std::string token;
  std::string process;

  bool operator==(const Claim&) const = default;
};

/// Of one rank: who it is, how many ranks it believes in, and its blob.
struct Record {
  Claim claim;
  Rank size = 0;
  std::string blob;

  std::string encode() const;
  static Record decode(std::string_view bytes);  // throws Error(kTransport)
};

/// Of rank 0 for all: the records of all ranks, or the error that all are to raise.
struct Outcome {
  std::vector<Record> records;
  std::optional<Error> error;
  bool is_early = false;  // the error was known before all had come: those who come are to read it

  std::string encode() const;
  static Outcome decode(std::string_view bytes);  // throws Error(kTransport)
};

}  // namespace ringcoll
