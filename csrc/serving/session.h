// What a server knows of one client, or of another server that sends it what changes shards.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "remote/batch.h"
#include "serving/line.h"
#include "serving/memory.h"
#include "serving/request.h"
#include "serving/wire.h"

namespace ringcoll::serving {

/// A request that was carried out, and is answered when backups have done the same and its rows
/// have been written.
struct Answer {
  uint64_t sequence = 0;
  ReplyHead head;
  size_t bytes = 0;  // of rows or text, which are in the slot of the reply already
  std::shared_ptr<remote::Batch> rows;        // being written to the client
  std::shared_ptr<SharedBuffer> rows_memory;  // that they are written from
  struct Wait {
    int64_t server = 0;
    uint64_t table = 0;
    uint32_t shard = 0;
    bool is_lost = false;  // there is no such line any more: the whole shard is sent instead
  };
  std::vector<Wait> waits;  // for backups
};

/// A request that is being read.
struct Current {
  Incoming request;
  std::shared_ptr<SharedBuffer> buffer;
  std::shared_ptr<remote::Batch> load;  // of values that lie elsewhere
  std::optional<Error> failure;         // what is wrong with the request
  std::optional<Deadline> wait;         // for a shard that is not here yet
};

/// What is answered to further requests of a round (Outcome::kAgain).
struct Again {
  uint32_t round = 0;
  ReplyHead head;
};

struct Session {
  Session(remote::Agent& own, int64_t id) : agent(own), client(id), line(own) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  remote::Agent& agent;
  const int64_t client;
  LineEnd line;
  uint64_t next = 1;  // the first request that was not carried out
  std::optional<Current> current;
  std::list<std::shared_ptr<Answer>> answers;
  std::map<uint64_t, Again> again;  // by table
  std::set<uint64_t> asleep;        // tables of which a pull waits for a clock
  uint64_t wakes = 0;               // that were sent
};

}  // namespace ringcoll::serving
