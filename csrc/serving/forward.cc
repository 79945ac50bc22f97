#include "serving/forward.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringcoll::serving {

bool ForwardLine::may_send() const {
  return line_.is_connected() && next_ - answered_ <= kSlots && line_.may_write(next_);
}

void ForwardLine::send(Outgoing request, Forwarded what) {
  if (kept_.empty() && may_send()) {
    request.head.sequence = next_;
    request.write(line_.outgoing(next_));
    unanswered_.push_back(std::move(what));
    line_.send(next_++, request.bytes());
    return;
  }
  Kept& kept = kept_.emplace_back();
  kept.message.resize(request.bytes());
  request.write(kept.message.data());
  kept.what = std::move(what);
}

bool ForwardLine::progress() {
  bool any = line_.collect();
  while (answered_ + 1 < next_ && line_.has(answered_ + 1)) {
    answered_++;
    Reply reply;
    const std::byte* slot = line_.incoming(answered_);
    std::memcpy(&reply.head, slot, sizeof reply.head);
    reply.body = {slot + sizeof reply.head, std::min<uint64_t>(reply.head.bytes, kReplyBytes)};
    const Forwarded what = std::move(unanswered_.front());
    unanswered_.pop_front();
    what.answered(reply);
    any = true;
  }
  while (!kept_.empty() && may_send()) {
    Kept kept = std::move(kept_.front());
    kept_.pop_front();
    std::memcpy(kept.message.data() + offsetof(RequestHead, sequence), &next_, sizeof next_);
    std::memcpy(line_.outgoing(next_), kept.message.data(), kept.message.size());
    unanswered_.push_back(std::move(kept.what));
    line_.send(next_++, kept.message.size());
    any = true;
  }
  return any;
}

}  // namespace ringcoll::serving
