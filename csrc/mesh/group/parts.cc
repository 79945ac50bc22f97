#include "mesh/group/parts.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "mesh/mesh.h"

namespace ringcoll {
namespace {

uint8_t row_and_one(const TransportRow& row) {
  return static_cast<uint8_t>(&row - transports().data() + 1);
}

}  // namespace

Parts::Parts(const Mesh& mesh, const TransportPart& like) {
  for (Rank member : like.members) {
    const Mesh::Link& link = mesh.link(member);
    if (link.row && !parts_.contains(link.transport)) add(*link.row, *link.transport, like);
    links_.push_back({link.row, link.row ? parts_.at(link.transport).get() : nullptr});
  }
}

void Parts::add(const TransportRow& row, Transport& whole, const TransportPart& like) {
  auto part = whole.part(like);
  std::string text = part->address();
  parts_.emplace(&whole, std::move(part));
  if (text.empty()) return;
  auto free = std::ranges::find(addresses_, 0, &Address::row_and_one);
  invariant(free != addresses_.end() && text.size() <= kMaxPartAddressBytes,
            "{}: an address of {} bytes too much", row.name, text.size());
  free->row_and_one = row_and_one(row);
  free->bytes = static_cast<uint8_t>(text.size());
  std::ranges::copy(text, free->text.begin());
}

std::string Parts::reach(Rank peer, const Addresses& theirs) {
  const Link& link = links_[peer];
  std::string_view text;
  for (const Address& address : theirs)
    if (address.row_and_one == row_and_one(*link.row))
      text = {address.text.data(), std::min<size_t>(address.bytes, address.text.size())};
  return link.transport->reach(peer, text);
}

void Parts::add_readers(std::vector<std::unique_ptr<Readers>>* readers) const {
  for (const auto& [whole, part] : parts_)
    if (auto of_part = part->readers()) readers->push_back(std::move(of_part));
}

std::vector<Transport*> transports_of(std::span<const Parts::Link> links,
                                      std::optional<LinkClass> of_class) {
  std::vector<Transport*> transports;
  for (const auto& [row, transport] : links) {
    if (!row || (of_class && row->link != *of_class)) continue;
    if (std::ranges::find(transports, transport) == transports.end())
      transports.push_back(transport);
  }
  return transports;
}

void lend_to(std::span<Transport* const> transports, std::span<Loan> loans, size_t in_flight) {
  if (transports.empty()) return;
  transports.front()->lend(loans, in_flight);
  for (Transport* transport : transports.subspan(1)) {
    std::vector<Loan> again(loans.begin(), loans.end());
    transport->lend(again, in_flight);
    for (size_t i = 0; i < loans.size(); i++) loans[i].granted &= again[i].granted;
  }
}

}  // namespace ringcoll
