// An endpoint that behaves as badly as the contract allows, or worse, around one that behaves. For
// tests of whatever uses endpoints.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "transport/transport.h"

namespace ringcoll::testing {

/// What goes wrong. 0 = never. Counts begin at 1 and are of one endpoint.
struct Faults {
  // Allowed by the contract, so the caller must come through unharmed.
  uint64_t refuse_send_every = 0;     // every n-th try_send has no credit
  uint64_t hide_recv_every = 0;       // every n-th try_recv finds nothing
  uint64_t lag_completed_polls = 0;   // completed() shows news only after so many calls
  uint64_t repeat_polls = 0;          // every poll is made so many times more than asked for
  Duration delay_send{};              // before a message is handed on
  Duration delay_recv{};              // before a message that has come is shown,
  uint64_t delay_recvs = UINT64_MAX;  // for the first so many
  Duration delay_stream{};            // before each of the first messages with content is shown,
                                      // until one without follows
  // Failures: thrown instead of doing it, and ever after, as a broken link would.
  uint64_t fail_send = 0;  // at the n-th message sent
  uint64_t fail_recv = 0;  // at the n-th message received
  Code code = Code::kTransport;
  Rank rank = kNobody;  // whom the failure blames
};

/// Never changes a message. All calls are passed on to `inner`, which is owned.
class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, Faults faults)
      : inner_(std::move(inner)), faults_(faults) {}

  bool try_establish(Deadline deadline) override { return inner_->try_establish(deadline); }
  bool try_prove(Deadline deadline) override { return inner_->try_prove(deadline); }
  bool drained() override { return inner_->drained(); }
  void expect(void* place, uint64_t capacity) override { inner_->expect(place, capacity); }

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override {
    fail_if(broken_ || sent_ + 1 == faults_.fail_send, "try_send");
    if (every(++send_polls_, faults_.refuse_send_every)) return 0;
    pause(faults_.delay_send);
    uint64_t number = inner_->try_send(envelope, data, bytes);
    sent_ += number > 0;
    return number;
  }

  uint64_t completed() override {
    fail_if(broken_, "completed");
    uint64_t now = inner_->completed();
    for (uint64_t i = 0; i < faults_.repeat_polls; i++) now = inner_->completed();
    if (now == shown_) return shown_;
    if (lag_++ < faults_.lag_completed_polls) return shown_;
    lag_ = 0;
    return shown_ = now;
  }

  bool try_recv(void* place, uint64_t capacity, View* view) override {
    fail_if(broken_ || received_ + 1 == faults_.fail_recv, "try_recv");
    if (every(++recv_polls_, faults_.hide_recv_every)) return false;
    bool there = inner_->try_recv(place, capacity, view);
    for (uint64_t i = 0; i < faults_.repeat_polls && !there; i++)
      there = inner_->try_recv(place, capacity, view);
    if (!there) return false;
    if (received_ < faults_.delay_recvs) pause(faults_.delay_recv);
    received_++;
    if (view->bytes > 0) pause(faults_.delay_stream);
    if (view->bytes == 0 && streamed_) faults_.delay_stream = Duration::zero();
    streamed_ |= view->bytes > 0;
    return true;
  }

  bool try_peek(Envelope* envelope, uint64_t* bytes) override {
    fail_if(broken_ || received_ + 1 == faults_.fail_recv, "try_peek");
    if (every(++recv_polls_, faults_.hide_recv_every)) return false;
    return inner_->try_peek(envelope, bytes);
  }

  void release() override {
    fail_if(broken_, "release");
    inner_->release();
  }

  bool progress() override {
    fail_if(broken_, "progress");
    bool moved = inner_->progress();
    for (uint64_t i = 0; i < faults_.repeat_polls; i++) moved |= inner_->progress();
    return moved;
  }

  bool busy() const override { return inner_->busy(); }

  uint64_t messages_sent() const { return sent_; }
  uint64_t messages_received() const { return received_; }

 private:
  static bool every(uint64_t count, uint64_t n) { return n != 0 && count % n == 0; }
  static void pause(Duration time) {
    constexpr Duration kShort = std::chrono::microseconds(200);  // the kernel adds up to 120
    if (time > kShort) return std::this_thread::sleep_for(time);
    for (Deadline deadline(time); time > Duration::zero() && !deadline.passed();) continue;
  }
  void fail_if(bool condition, const char* call) {
    if (!condition) return;
    broken_ = true;
    throw Error(faults_.code, std::string("injected failure of ") + call, faults_.rank);
  }

  std::unique_ptr<Endpoint> inner_;
  Faults faults_;
  bool broken_ = false;
  uint64_t send_polls_ = 0;
  uint64_t recv_polls_ = 0;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  uint64_t shown_ = 0;
  uint64_t lag_ = 0;
  bool streamed_ = false;
};

/// A transport whose endpoints are faulty as `choose(peer)` says.
class FaultyTransport final : public Transport {
 public:
  using Choose = std::function<Faults(Rank peer)>;

  FaultyTransport(std::unique_ptr<Transport> inner, Choose choose)
      : inner_(std::move(inner)), choose_(std::move(choose)) {}

  std::string address() const override { return inner_->address(); }
  std::string reach(Rank peer, std::string_view address) override {
    return inner_->reach(peer, address);
  }
  size_t sockets_to(Rank peer) const override { return inner_->sockets_to(peer); }
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets,
                                    Deadline deadline) override {
    return std::make_unique<FaultyEndpoint>(inner_->connect(peer, std::move(sockets), deadline),
                                            choose_(peer));
  }
  bool wants_places() const override { return inner_->wants_places(); }
  bool sends_from_anywhere() const override { return inner_->sends_from_anywhere(); }
  void lend(std::span<Loan> loans, size_t in_flight) override { inner_->lend(loans, in_flight); }
  void revoke() noexcept override { inner_->revoke(); }
  /// As faulty, to the part's ranks.
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<FaultyTransport>(inner_->part(part), choose_);
  }
  bool connected_by(Rank peer) override { return inner_->connected_by(peer); }
  bool may_be_ready(Sleep* sleep) override { return inner_->may_be_ready(sleep); }
  void end_wait() override { inner_->end_wait(); }

 private:
  std::unique_ptr<Transport> inner_;
  Choose choose_;
};

}  // namespace ringcoll::testing
