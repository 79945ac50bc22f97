// Ranks as threads, for tests: each has a communicator and an executor, joined by a local store.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "coll/executor.h"
#include "comm/communicator.h"

namespace ringcoll::testing {

/// What one rank of a test has.
struct Member {
  Communicator& comm;
  Executor& executor;
  Rank rank;
  Rank size;
};

/// The default knobs with a transport and an algorithm by name, on the loopback interface, with a
/// short deadline.
Config test_config(const std::string& transport, const std::string& algorithm = "");

/// The host of each rank, for RINGCOLL_HOSTID; none: all on one.
using HostOf = std::function<std::string(Rank)>;

/// Runs `body` on `size` ranks at once and waits for them. Returns what each threw; nullopt where
/// nothing.
std::vector<std::optional<Error>> run_ranks(Rank size, const Config& config,
                                            const std::function<void(Member&)>& body,
                                            const HostOf& host_of = {});
/// The same, and fails the test if a rank threw.
void run_world(Rank size, const Config& config, const std::function<void(Member&)>& body,
               const HostOf& host_of = {});

/// A call with the root 0, without counts or scales.
rc_call call_of(Collective collective, DataType dtype, ReduceOp op, std::span<rc_buffer> buffers);
void run(Member& m, const rc_call& raw);

/// Elements of any type by their value.
using Bytes = std::vector<std::byte>;
void put(DataType dtype, Bytes& bytes, int64_t i, double value);
double get(DataType dtype, const Bytes& bytes, int64_t i);

/// What rank `rank` contributes as element i: small whole numbers, so that all sums and products of
/// up to 16 ranks are exact in every type.
double contribution(ReduceOp op, Rank rank, int64_t i);
/// What all ranks together make of element i.
double combined(ReduceOp op, DataType dtype, Rank size, int64_t i);

}  // namespace ringcoll::testing
