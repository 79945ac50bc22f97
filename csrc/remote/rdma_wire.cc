#include "remote/rdma_wire.h"

#include "base/error.h"
#include "net/wire.h"

namespace ringcoll::remote {

std::string encode(const RdmaOffer& offer) {
  WireWriter out;
  out.put(offer);
  return out.take();
}

RdmaOffer decode_offer(std::string_view bytes) {
  WireReader in(bytes, "an offer of RDMA");
  auto offer = in.get<RdmaOffer>();
  in.finish();
  check(offer.address.magic == rdma::kMagic && offer.address.version == rdma::kVersion,
        Code::kTransport, "the peer has another version of ringcoll");
  return offer;
}

}  // namespace ringcoll::remote
