#include <algorithm>

#include "base/error.h"
#include "engine/engine.h"

namespace ringcoll {
namespace {

// Gathers blobs of any length over all ranks of a communicator.
std::vector<std::string> gather_blobs(Engine& engine, const std::string& mine) {
  Rank size = engine.comm().size();
  auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(size);
  rc_buffer buffer{&length, lengths.data(), 1};
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_ALLGATHER;
  call.dtype = RC_INT64;
  call.buffers = &buffer;
  call.buffer_count = 1;
  engine.run(call);
  int64_t total = 0;
  for (int64_t bytes : lengths) total += bytes;
  std::string all(total, '\0');
  buffer = {mine.data(), all.data(), length};
  call.dtype = RC_UINT8;
  call.counts = lengths.data();
  engine.run(call);
  std::vector<std::string> blobs;
  size_t at = 0;
  for (int64_t bytes : lengths) {
    blobs.push_back(all.substr(at, bytes));
    at += bytes;
  }
  return blobs;
}

// The exchange of one group, carried by the parent: all ranks of the parent take part in every
// round, whichever group they are in, so each must make the same number of rounds.
class SplitExchange : public Exchange {
 public:
  SplitExchange(Engine& parent, std::span<const Rank> group)
      : parent_(parent), group_(group.begin(), group.end()) {
    auto at = std::ranges::find(group_, parent.comm().rank());
    rank_ = static_cast<Rank>(at - group_.begin());
  }

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(group_.size()); }

  std::vector<std::string> all_gather(const std::string& mine, Deadline) override {
    rounds_++;
    auto all = gather_blobs(parent_, mine);
    std::vector<std::string> ours;
    for (Rank r : group_) ours.push_back(std::move(all[r]));
    return ours;
  }

  // The rounds that this rank has not made, having no group or having failed.
  void finish() {
    while (rounds_ < Communicator::kExchanges) {
      rounds_++;
      gather_blobs(parent_, "");
    }
  }

 private:
  Engine& parent_;
  std::vector<Rank> group_;
  Rank rank_ = 0;
  int rounds_ = 0;
};

void check_group(Engine& parent, std::span<const Rank> group) {
  Rank size = parent.comm().size();
  std::vector<bool> seen(size, false);
  for (Rank r : group) {
    check(r >= 0 && r < size, Code::kInvalidArgument, "{} is not a rank of this communicator of {}",
          r, size);
    check(!seen[r], Code::kInvalidArgument, "rank {} is named twice in the group", r);
    seen[r] = true;
  }
  check(group.empty() || seen[parent.comm().rank()], Code::kInvalidArgument,
        "rank {} is not in the group that it passes; pass an empty group to stay out",
        parent.comm().rank());
}

// All ranks of a group must name the same group; all learn of any rank's bad argument, since the
// call is collective.
void agree_on_groups(Engine& parent, std::span<const Rank> group, const std::string& refused) {
  std::string mine(reinterpret_cast<const char*>(group.data()), group.size_bytes());
  auto refusals = gather_blobs(parent, refused);
  auto groups = gather_blobs(parent, mine);
  for (size_t r = 0; r < refusals.size(); r++)
    check(refusals[r].empty(), Code::kInvalidArgument, "split: rank {}: {}", r, refusals[r]);
  for (Rank r : group)
    check(groups[r] == mine, Code::kInvalidArgument,
          "split: ranks {} and {} name different groups that contain both", parent.comm().rank(),
          r);
}

}  // namespace

std::unique_ptr<Engine> split(Engine& parent, std::span<const Rank> group, std::string name) {
  std::string refused;
  try {
    check_group(parent, group);
  } catch (const Error& error) {
    refused = error.what();
  }
  if (!refused.empty()) group = {};
  agree_on_groups(parent, group, refused);
  SplitExchange exchange(parent, group);
  std::unique_ptr<Engine> engine;
  try {
    if (!group.empty())
      engine = std::make_unique<Engine>(parent.comm().config(), std::move(name), exchange,
                                        &parent.comm());
  } catch (...) {  // of whatever kind: the others wait in the rounds
    exchange.finish();
    throw;
  }
  exchange.finish();
  return engine;
}

}  // namespace ringcoll
