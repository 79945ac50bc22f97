#include "engine/messages.h"

#include <cmath>
#include <optional>
#include <utility>

#include "base/interruption.h"

namespace ringcoll {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 47;  // more than a process can address

}  // namespace

Transfer transfer_of(const rc_message& raw, bool receives, const Communicator& comm) {
  const char* peer = receives ? "source" : "destination";
  check(raw.bytes >= 0 && (raw.bytes == 0 || raw.data), Code::kInvalidArgument,
        "a message of {} bytes at {}: data is NULL, or bytes are negative", raw.bytes,
        raw.data ? "an address" : "NULL");
  check(raw.bytes <= kMostBytes, Code::kInvalidArgument,
        "a message of {} bytes: no memory holds so many", raw.bytes);
  check((raw.peer >= 0 && raw.peer < comm.size()) || (receives && raw.peer == RC_ANY_SOURCE),
        Code::kInvalidArgument, "{} {} is no rank of this communicator of {}{}", peer, raw.peer,
        comm.size(), receives ? ", nor RC_ANY_SOURCE" : "");
  check(raw.tag >= 0 || (receives && raw.tag == RC_ANY_TAG), Code::kInvalidArgument,
        "tag {} is not possible: tags are 0 to 2^31-1{}", raw.tag,
        receives ? ", or RC_ANY_TAG" : "");
  check(raw.timeout_s >= 0, Code::kInvalidArgument,
        "timeout_s is {}: it is a number of seconds, or 0 for RINGCOLL_TIMEOUT_S", raw.timeout_s);
  Transfer transfer;
  transfer.receives = receives;
  transfer.peer = raw.peer;
  transfer.tag = raw.tag;
  transfer.data = static_cast<std::byte*>(raw.data);
  transfer.bytes = static_cast<uint64_t>(raw.bytes);
  transfer.timeout_s = raw.timeout_s;
  return transfer;
}

void run(Engine& engine, Transfer& transfer, const rc_message& raw) {
  check(!engine.is_calling_back(), Code::kInvalidArgument,
        "a completion callback cannot wait for a message on its own communicator: start it "
        "(ringcoll_isend, ringcoll_irecv)");
  std::optional<Interruption> interruption;
  if (raw.interrupted)
    interruption.emplace([&] { return engine.asks(raw); },
                         [&] { engine.post()->interrupt(transfer); });
  engine.post()->run(transfer);
}

MessageRequest::MessageRequest(Transfer transfer, Engine& engine, Done done)
    : engine_(&engine),
      post_(engine.post()),
      transfer_(std::move(transfer)),
      done_(std::move(done)) {}

void MessageRequest::start() {
  if (done_)
    transfer_.done = [self = shared_from_this()](const std::optional<Error>& error) {
      CallbackScope scope(self->engine_);
      self->done_(error);
    };
  try {
    post_->start(transfer_);
  } catch (...) {
    transfer_.done = {};
    throw;
  }
}

bool MessageRequest::may_wait() {
  return CallbackScope::current() != engine_ || post_->has_ended(transfer_);
}

bool MessageRequest::wait(double limit_s) {
  if (!post_->wait(transfer_, limit_s)) return false;
  if (transfer_.error) throw *transfer_.error;
  return true;
}

Received MessageRequest::received() {
  check(transfer_.receives, Code::kInvalidArgument,
        "the request is a send, which receives nothing");
  check(post_->has_ended(transfer_), Code::kInvalidArgument,
        "the receive has not ended: wait for it first");
  return transfer_.received;
}

}  // namespace ringcoll
