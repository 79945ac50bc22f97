// What a group has of the mesh's transports: a part of each that joins this rank and another of the
// group, and what its peers need to know of these.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace ringcoll {

class Mesh;

/// Ranks are the group's. One thread at a time.
class Parts {
 public:
  /// Of one part, to be told. Fixed widths, no padding.
  struct Address {
    uint8_t row_and_one = 0;  // of the registry of transports; 0: none
    uint8_t bytes = 0;
    std::array<char, kMaxPartAddressBytes> text{};
  };
  /// Within hosts and between them.
  using Addresses = std::array<Address, 2>;
  struct Link {
    const TransportRow* row = nullptr;  // null: to itself
    Transport* transport = nullptr;     // the part
  };

  /// `like` says what all of them are like. Throws Error(kTransport) if there is no room.
  Parts(const Mesh& mesh, const TransportPart& like);

  const Addresses& addresses() const { return addresses_; }
  const std::vector<Link>& links() const { return links_; }  // by rank
  /// "" if the peer that has told these is reached, else why not.
  std::string reach(Rank peer, const Addresses& theirs);
  /// When their endpoints are gone: adds those of each (Transport::readers).
  void add_readers(std::vector<std::unique_ptr<Readers>>* readers) const;

 private:
  void add(const TransportRow& row, Transport& whole, const TransportPart& like);

  std::map<const Transport*, std::unique_ptr<Transport>> parts_;  // by the mesh's
  std::vector<Link> links_;
  Addresses addresses_;
};

}  // namespace ringcoll
