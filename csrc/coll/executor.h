// Runs schedules on a communicator: the only place where steps meet endpoints. Segmenting,
// pipelining, deadlines, statistics, mismatches and abort live here, for every algorithm and every
// transport.
//
// The pipeline. A call is cut into pieces; a piece goes through the stages of its plan: stage 0
// packs and sends what round 0 sends; stage i receives what round i-1 received and sends what round
// i sends; the last stage receives and finishes. In every tick each piece in flight advances by one
// stage, the newest first. Since all ranks run the same ticks and rounds, a message is received one
// tick after it was sent, messages of a pair arrive in the order in which they are expected, and no
// rank waits for something that its peer does only after waiting for it: a receive of tick t
// depends on sends of tick t-1 alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/call.h"
#include "coll/call_cache.h"
#include "coll/layout.h"
#include "coll/mover.h"
#include "coll/select.h"
#include "comm/communicator.h"
#include "schedule/plan.h"

namespace ringcoll {

class Executor {
 public:
  /// `comm` outlives it.
  explicit Executor(Communicator& comm);
  /// Waits a while for peers that still read this rank's arena.
  ~Executor();

  /// Runs the call to its end: outputs are complete, sends are with the network. One thread at a
  /// time. Throws Error; all but kInvalidArgument have poisoned the communicator.
  void run(const Call& call);

 private:
  /// A message whose memory may not be written before `link` has completed it.
  struct Sent {
    Endpoint* link = nullptr;
    Rank peer = kNobody;
    uint64_t number = 0;
  };
  struct Slot {
    std::byte* bank[2];
    std::vector<Sent> unread;   // of the slot's last piece
    size_t prepared_bytes = 0;  // of each bank, by SharedMemory::prepare()
  };
  struct Piece {
    int64_t start = 0;  // tick of its stage 0
    int64_t index = 0;
    const Plan* plan = nullptr;
    Slot* slot = nullptr;
    bool zero_copy = false;  // its memory is lent, so that it can be sent as it lies
    std::vector<Fragment> fragments;
    std::vector<Sent> sent;  // by round
    PieceMemory memory;
  };
  /// What a rank does in a piece, and with whom.
  struct Planned {
    Plan plan;
    std::vector<Rank> peers;
    bool connected = false;  // to all of them
  };

  /// What decides layout, schedule and plan of a call of one tensor.
  struct Shape {
    Collective collective;
    DataType dtype;
    ReduceOp op;
    Rank root;
    double prescale, postscale;
    int64_t count;
    bool has_input, has_output;
    bool operator==(const Shape&) const = default;
  };

  void execute(const Call& call);
  void prepare(const Call& call);
  void run_alone(const Call& call, const Choice& choice);
  void run_pipeline(const Call& call, const Choice& choice);
  void begin(Piece& piece, const Call& call, const Choice& choice);
  bool is_zero_copy(const Piece& piece, const Call& call) const;
  void prepare_slot(Slot& slot, int64_t elements);
  void expect(Piece& piece, size_t round);
  void advance(Piece& piece, size_t stage);
  void send(Piece& piece, size_t round);
  void receive(Piece& piece, size_t round);
  std::byte* place_for(const Piece& piece, const Action& action) const;
  void note_sent(Piece& piece, size_t round, const Sent& sent);
  void await_completion(const Sent& sent);
  void await_lent();
  void check_view(Rank peer, const View& view, uint64_t expected_bytes);
  const Choice& choice_for(const Call& call);
  const Plan* plan_of(const Piece& piece, const Call& call, const Choice& choice);
  Planned& plan_for(const Call& call, const ScheduleRow& row, bool zero_copy);
  Planned make_plan(const Call& call, const ScheduleRow& row, bool zero_copy);
  std::string doing() const;

  Communicator& comm_;
  std::vector<Rank> order_;     // ring order: position to rank
  std::vector<Rank> position_;  // rank to position
  Rank self_;                   // position of this rank
  std::optional<Selector> selector_;
  std::vector<bool> zero_copy_;  // by position: can be sent what is lent; empty: nobody
  std::vector<Slot> slots_;
  uint64_t next_slot_ = 0;
  std::vector<Sent> lent_;  // the last one from the caller's memory, of each link
  CallCache<Choice> choices_;
  CallCache<Planned> plans_;

  // Of the call that runs; members so that their memory is kept.
  Signature signature_;
  Envelope envelope_;  // the same, as messages have it
  uint64_t sequence_ = 0;
  Layout layout_;
  std::optional<Mover> mover_;
  const Choice* choice_ = nullptr;
  std::optional<Shape> shape_;           // none: not one tensor
  const Plan* repeated_plan_ = nullptr;  // of a call in one piece
  bool repeated_plan_zero_copy_ = false;
  std::vector<Piece> pieces_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> key_;
};

}  // namespace ringcoll
