#include "remote/server.h"

#include <utility>

#include "base/error.h"

namespace ringcoll::remote {

std::shared_ptr<RegionUse> Server::use(const std::shared_ptr<Link>& link, const FrameHead& head,
                                       bool writes) {
  auto use = std::make_shared<RegionUse>(
      regions_.use(head.region, head.secret, head.offset, head.bytes, writes));
  std::lock_guard lock(mutex_);
  std::erase_if(uses_, [](const Use& each) { return each.use.expired(); });
  uses_.push_back({link, use, use->get()});
  return use;
}

Place Server::place_for(const std::shared_ptr<Link>& link, const FrameHead& head) {
  try {
    auto used = use(link, head, /*writes=*/true);
    std::byte* data = (*used)->data() + head.offset;
    return {data, std::move(used)};
  } catch (const Error&) {
    return {};  // take() finds the same, and says it
  }
}

void Server::take(const std::shared_ptr<Link>& link, const FrameHead& head) {
  try {
    if (head.kind == FrameKind::kRead) {
      check(head.bytes <= kChunkBytes, Code::kInvalidArgument, "{} bytes at once are too many",
            head.bytes);
      auto used = use(link, head, /*writes=*/false);
      const std::byte* data = (*used)->data() + head.offset;
      answered_bytes_ += head.bytes;
      link->send({.kind = FrameKind::kData, .id = head.id, .bytes = head.bytes}, data,
                 std::move(used));
      return;
    }
    bool writes = head.kind == FrameKind::kWrite;
    uint64_t offset = writes ? head.offset : 0;  // that of a notice is its value
    RegionUse used = regions_.use(head.region, head.secret, offset, head.bytes, /*writes=*/true);
    if (!writes) used->give_notice(head.offset);
    answered_bytes_ += head.bytes;
    link->send({.kind = FrameKind::kDone, .id = head.id});
  } catch (const Error& error) {
    link->send(
        {.kind = FrameKind::kFailed, .code = static_cast<uint16_t>(error.code()), .id = head.id},
        std::string(error.what()).substr(0, kLongestText));
  }
}

void Server::give_up(const Region& region) {
  std::vector<Use> given_up;
  {
    std::lock_guard lock(mutex_);
    for (const Use& each : uses_)
      if (each.region == &region) given_up.push_back(each);
  }
  for (const Use& each : given_up) {
    auto link = each.link.lock();
    auto used = each.use.lock();
    if (link && used) link->abandon(used.get());
  }
}

}  // namespace ringcoll::remote
