// Messages with tags as callers of the C ABI ask for them.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace ringcoll {

/// Checks what was asked for. Throws Error(kInvalidArgument). `raw` has all fields.
Transfer transfer_of(const rc_message& raw, bool receives, const Communicator& comm);

/// Runs it to its end in this thread, unless the caller interrupts it (`raw`). Throws its error;
/// kInvalidArgument in a callback.
void run(Engine& engine, Transfer& transfer, const rc_message& raw);

/// A message that was started.
class MessageRequest final : public Request, public std::enable_shared_from_this<MessageRequest> {
 public:
  MessageRequest(Transfer transfer, Engine& engine, Done done);

  /// Throws Error if it is refused; `done` is not called then.
  void start();
  bool wait(double limit_s) override;
  bool may_wait() override;
  /// What has come, once a receive has ended. Throws Error(kInvalidArgument).
  Received received();

 private:
  const Engine* engine_;  // which may be gone, to compare it
  std::shared_ptr<Post> post_;
  Transfer transfer_;
  Done done_;
};

}  // namespace ringcoll
