// What travels on a line between a client and a server of parameter tables, or between two servers.
//
// A line has slots for requests in memory of the server, and slots for replies in memory of the
// client (serving/line.h). A request is a RequestHead, then its pieces, and then what `where` says:
//
//   inside:   ids, and the values of a push, one row after another
//   packed:   a handle of a region that has both
//   spread:   a handle of the client's whole tensor, for a dense table
//
// and then, for a pull whose rows do not fit into a slot, a handle of the region that gets them. A
// reply is a ReplyHead, and then rows, or the text of an error. All numbers are little endian, as
// on every machine that ringcoll runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace ringcoll::serving {

/// Requests of one line that are under way.
inline constexpr uint64_t kSlots = 16;
inline constexpr size_t kSlotBytes = 64 << 10;

enum class Kind : uint8_t {
  kRows = 0,     // a push, a pull, or both: RequestHead::pushes, pulls
  kTick = 2,     // the client finishes a clock
  kJoin = 3,     // the client becomes a worker
  kLeave = 4,    // only forwarded: it is none any more
  kGrace = 5,    // only forwarded: the time of grace of a clock has passed
  kRule = 6,     // another rule, or other parameters of it: JSON in place of values
  kInstall = 7,  // only forwarded: a shard as a whole, in place of values
  kAssign = 8,   // the values of rows, past rule and clocks; otherwise as a push
  kEnd = 9,      // only forwarded: as kLeave, and the client sends nothing more
};

/// Whether requests of the kind name rows.
constexpr bool has_rows(Kind kind) { return kind == Kind::kRows || kind == Kind::kAssign; }
/// Whether clients send such requests.
constexpr bool is_of_clients(Kind kind) {
  return has_rows(kind) || kind == Kind::kTick || kind == Kind::kJoin || kind == Kind::kRule;
}

/// In place of a rules::Merging: nothing is said.
inline constexpr uint8_t kUnmerged = UINT8_MAX;

enum class Where : uint8_t { kInside, kPacked, kSpread };

/// Some rows of one shard. Of a dense table these are all its rows, and of requests without rows
/// none are named.
struct Piece {
  int64_t epoch = 0;  // of the shard, if it is forwarded
  uint32_t shard = 0;
  uint32_t rows = 0;
};

struct RequestHead {
  uint64_t sequence = 0;  // on the line
  uint64_t table = 0;     // key_of() its uid
  int64_t client = 0;     // who began the request
  int64_t number = 0;     // of the client's requests for this table
  int64_t clock = 0;
  double weight = 1;
  uint64_t value_bytes = 0;  // of the push
  uint64_t out_bytes = 0;    // of the pull
  uint32_t pieces = 0;
  uint32_t ids = 0;               // as many as all pieces have rows; 0 for a dense table
  uint32_t handle_bytes = 0;      // of the region that has the values
  uint32_t out_handle_bytes = 0;  // of the region that gets the rows; 0: the reply has them
  uint32_t round = 0;             // Outcome::kAgain
  Kind kind = Kind::kRows;
  uint8_t dtype = 0;  // of the push
  Where where = Where::kInside;
  bool pushes = false;
  bool pulls = false;
  bool has_clock = false;  // the pull is a worker's
  bool forwarded = false;
  bool out_spread = false;  // the region that gets the rows is the client's whole tensor
  bool rule_fails = false;  // only forwarded: the custom rule has thrown where the shards are led
  uint8_t merged = kUnmerged;  // how values of equal ids have become one: a rules::Merging
  uint8_t unused[2] = {};
};
static_assert(sizeof(RequestHead) == 96);

/// kAgain keeps a client's requests for a table in their order. A server that answers kAgain to one
/// request of a round answers so to all later ones of that round. The client begins the next round
/// when all that it has sent was answered, with what was answered so, in the order of numbers.
enum class Outcome : uint8_t {
  kDone,
  kAgain,   // nothing has changed; after the wake with the number ReplyHead::wake, if it is not 0
  kMoved,   // as kAgain, since some of these shards are elsewhere. To what was forwarded: this
            // server is no backup of the shards of which the numbers follow (uint32_t each); it has
            // done the rest
  kFailed,  // `code` and a text say why
};

struct ReplyHead {
  uint64_t sequence = 0;
  int64_t clock = 0;  // the first that is not complete: the latest of the shards
  uint64_t wake = 0;
  uint64_t bytes = 0;  // of rows, or of the text
  Code code = Code::kInternal;
  Outcome outcome = Outcome::kDone;
  // With kAgain, if the request was merged otherwise than the rule merges now: how the rule does
  // it, a rules::Merging.
  uint8_t merging = kUnmerged;
};

/// The most shards that a table has, so that a request's pieces fit into a slot.
inline constexpr size_t kMostShards = 1024;
/// What fits into a slot beside a reply's head.
inline constexpr size_t kReplyBytes = kSlotBytes - sizeof(ReplyHead);

}  // namespace ringcoll::serving
