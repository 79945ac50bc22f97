// Messages with tags, as callers of the C ABI ask for them.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace ringcoll {

/// Checks `raw` and makes a transfer of it. Throws Error(kInvalidArgument). Precondition: `raw` has
/// all fields of this library's rc_message (from_caller).
Transfer transfer_of(const rc_message& raw, bool receives, const Communicator& comm);

/// Runs the transfer to its end in this thread, unless `raw.interrupted` ends it. Throws its error;
/// kInvalidArgument in a callback.
void run(Engine& engine, Transfer& transfer, const rc_message& raw);

/// A message of ringcoll_isend() or ringcoll_irecv().
class MessageRequest final : public Request, public std::enable_shared_from_this<MessageRequest> {
 public:
  MessageRequest(Transfer transfer, Engine& engine, Done done);

  /// Starts the transfer. Throws Error if it is refused; then `done` is not called.
  void start();
  bool wait(double limit_s) override;
  bool may_wait() override;
  /// The message that a receive has matched. Throws Error(kInvalidArgument) for a send, or a
  /// receive that has not ended.
  Received received();

 private:
  const Engine* engine_;  // may be gone; it is only compared
  std::shared_ptr<Post> post_;
  Transfer transfer_;
  Done done_;
};

}  // namespace ringcoll
