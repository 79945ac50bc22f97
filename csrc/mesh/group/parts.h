// The parts of the mesh's transports that a group uses: one of each transport that joins this rank
// and another member, and the addresses that peers need.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace ringcoll {

class Mesh;

/// Ranks are group ranks. One thread at a time.
class Parts {
 public:
  /// The address of one part, as peers are told it. Fixed widths, no padding.
  struct Address {
    uint8_t row_and_one = 0;  // index in transports(), plus 1; 0: none
    uint8_t bytes = 0;
    std::array<char, kMaxPartAddressBytes> text{};
  };
  /// The addresses of a rank's parts, followed by empty entries. Several parts may be of one class.
  using Addresses = std::array<Address, kMostTransports>;
  struct Link {
    const TransportRow* row = nullptr;  // null: the rank itself
    Transport* transport = nullptr;     // the part
  };

  /// `like` describes every part. Throws Error(kTransport) if there is no room.
  Parts(const Mesh& mesh, const TransportPart& like);

  const Addresses& addresses() const { return addresses_; }
  const std::vector<Link>& links() const { return links_; }  // by rank
  /// Returns "" if the peer with these addresses is reached, else the reason why not.
  std::string reach(Rank peer, const Addresses& theirs);
  /// Appends the readers of each part (Transport::readers). Precondition: nothing is being sent. It
  /// may run after the endpoints are gone.
  void add_readers(std::vector<std::unique_ptr<Readers>>* readers) const;

 private:
  void add(const TransportRow& row, Transport& whole, const TransportPart& like);

  std::map<const Transport*, std::unique_ptr<Transport>> parts_;  // by transport of the mesh
  std::vector<Link> links_;
  Addresses addresses_;
};

/// The transports of these links, or of those of one class, each once.
std::vector<Transport*> transports_of(std::span<const Parts::Link> links,
                                      std::optional<LinkClass> of_class = {});
/// Offers memory to all of them. A loan is granted if each of them grants it.
void lend_to(std::span<Transport* const> transports, std::span<Loan> loans, size_t in_flight);

}  // namespace ringcoll
