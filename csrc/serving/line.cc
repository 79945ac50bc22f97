#include "serving/line.h"

namespace ringcoll::serving {
namespace {

// A peer that takes no bytes for so long is lost. Who owns the line hears of it earlier otherwise.
constexpr Duration kSending = std::chrono::seconds(30);

}  // namespace

LineEnd::LineEnd(remote::Agent& agent)
    : agent_(agent),
      incoming_(agent, kSlots * kSlotBytes, /*writable=*/true),
      outgoing_(agent, kSlots * kSlotBytes, /*writable=*/false) {}

LineEnd::~LineEnd() {
  for (const auto& batch : sent_)
    if (batch) agent_.cancel(batch);
}

void LineEnd::connect(std::string_view handle) {
  auto peer = std::make_shared<remote::RegionHandle>(remote::decode(handle));
  check(peer->writable && peer->bytes == kSlots * kSlotBytes, Code::kInvalidArgument,
        "a line's end has {} bytes, not {}: it is of another version", peer->bytes,
        kSlots * kSlotBytes);
  peer_ = std::move(peer);
}

bool LineEnd::may_write(uint64_t number) const {
  const auto& batch = sent_[number % kSlots];
  return !batch || batch->has_ended();
}

void LineEnd::send(uint64_t number, size_t bytes) {
  sent_[number % kSlots] = begin({.writes = true,
                                  .local = outgoing(number),
                                  .bytes = bytes,
                                  .sources = {{peer_, place_of(number), 0}},
                                  .notice = number});
}

void LineEnd::wake(uint64_t number) {
  begin({.writes = true, .sources = {{peer_, 0, 0}}, .notice = kWake | number});
}

std::shared_ptr<remote::Batch> LineEnd::begin(remote::Copy copy) {
  auto done = [failure = failure_, &agent = agent_](const std::optional<Error>& error) {
    if (error) {
      std::lock_guard lock(failure->mutex);
      if (!failure->error) failure->error = error;
    }
    agent.ring();  // the slot may be written again
  };
  auto batch = std::make_shared<remote::Batch>(std::vector{std::move(copy)}, kSending, done);
  agent_.begin(batch);
  return batch;
}

bool LineEnd::collect() {
  bool any = false;
  while (auto notice = incoming_.region().try_take_notice()) {
    if ((*notice & kWake) != 0)
      woken_ = std::max(woken_, *notice & ~kWake);
    else
      arrived_[*notice % kSlots] = *notice;
    any = true;
  }
  return any;
}

std::optional<Error> LineEnd::failure() const {
  std::lock_guard lock(failure_->mutex);
  return failure_->error;
}

}  // namespace ringcoll::serving
