#include "ringcoll_controller.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "../logging.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

// What each rank of a process set tells the others about itself.
struct Member {
  uint64_t host;
  int32_t global_rank;
  int32_t local_rank;  // among the members of the set on its host
};

// The rows that a rank sends to another in an alltoall, and whether it sends as many to every rank.
struct Split {
  int32_t rows;
  int32_t of_all_ranks;
};

std::vector<int> ranks_where(const std::vector<Member>& members,
                             const std::function<bool(const Member&)>& wanted) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (wanted(members[rank])) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

int position_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// The number of members on each host; hosts are in the order of their first rank.
std::vector<int> sizes_of_hosts(const std::vector<Member>& members) {
  std::vector<uint64_t> hosts;
  std::vector<int> sizes;
  for (const Member& member : members) {
    auto known = std::find(hosts.begin(), hosts.end(), member.host);
    if (known == hosts.end()) {
      hosts.push_back(member.host);
      sizes.push_back(1);
    } else {
      ++sizes[known - hosts.begin()];
    }
  }
  return sizes;
}

}  // namespace

void RingcollController::Run(RingcollCall call) {
  RingcollContext::Get().Run(*this, std::move(call));
}

void RingcollController::RunOver(Communicator communicator, RingcollCall call) {
  if (communicator == Communicator::GLOBAL) return Run(std::move(call));
  bool local = communicator == Communicator::LOCAL;
  RingcollContext::Get().RunAmong(*this, local ? local_comm_ranks_ : cross_comm_ranks_,
                                  local ? "local" : "cross", std::move(call));
}

void RingcollController::DoInitialization() {
  const RingcollContext& context = RingcollContext::Get();
  const RingcollPlace& place = context.place();
  Member mine{place.host, place.rank, place.local_rank};
  size_ = context.SizeOf(*this);
  std::vector<Member> members(size_);
  Run(RingcollCall(RC_ALLGATHER, RC_UINT8).Add(&mine, members.data(), sizeof(mine)));

  global_ranks_.clear();
  global_rank_to_controller_rank_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    global_ranks_.push_back(members[rank].global_rank);
    global_rank_to_controller_rank_[members[rank].global_rank] = rank;
  }
  rank_ = global_rank_to_controller_rank_.at(place.rank);
  is_coordinator_ = rank_ == 0;

  std::vector<int> on_host = ranks_where(members, [&](auto& m) { return m.host == mine.host; });
  auto by_local_rank = [&](int a, int b) { return members[a].local_rank < members[b].local_rank; };
  std::sort(on_host.begin(), on_host.end(), by_local_rank);
  local_comm_ranks_ = on_host;
  local_rank_ = position_of(rank_, on_host);
  local_size_ = static_cast<int>(on_host.size());

  local_sizes_for_cross_rank_ = sizes_of_hosts(members);
  is_homogeneous_ =
      std::all_of(local_sizes_for_cross_rank_.begin(), local_sizes_for_cross_rank_.end(),
                  [&](int size) { return size == local_size_; });

  // Finds the ranks with the same local rank on other hosts. In a subset of the job, local ranks
  // are counted anew.
  mine.local_rank = local_rank_;
  Run(RingcollCall(RC_ALLGATHER, RC_UINT8).Add(&mine, members.data(), sizeof(mine)));
  cross_comm_ranks_ =
      ranks_where(members, [&](auto& m) { return m.local_rank == mine.local_rank; });
  cross_rank_ = position_of(rank_, cross_comm_ranks_);
  cross_size_ = static_cast<int>(cross_comm_ranks_.size());
  if (context.IsJob(this)) {  // the launcher decides
    local_rank_ = place.local_rank;
    local_size_ = place.local_size;
    cross_rank_ = place.cross_rank;
    cross_size_ = place.cross_size;
  }
  LOG(DEBUG) << "ringcoll controller initialized: rank " << rank_ << " of " << size_;
}

int RingcollController::GetTypeSize(DataType dtype) {
  return static_cast<int>(DataType_Size(dtype));
}

void RingcollController::Combine(std::vector<long long>& bitvector, int count, rc_op op) {
  RingcollCall call(RC_ALLREDUCE, RC_UINT64);
  call.call.op = op;
  Run(call.Add(bitvector.data(), bitvector.data(), count));
}

void RingcollController::CrossRankBitwiseAnd(std::vector<long long>& bitvector, int count) {
  Combine(bitvector, count, RC_BIT_AND);
}

void RingcollController::CrossRankBitwiseOr(std::vector<long long>& bitvector, int count) {
  Combine(bitvector, count, RC_BIT_OR);
}

std::vector<std::string> RingcollController::Gather(const std::string& mine) {
  int64_t bytes = static_cast<int64_t>(mine.size());
  std::vector<int64_t> counts(size_);
  Run(RingcollCall(RC_ALLGATHER, RC_INT64).Add(&bytes, counts.data(), 1));
  std::string all;
  if (is_coordinator_) all.resize(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  RingcollCall gather(RC_GATHER, RC_UINT8);
  gather.call.counts = counts.data();
  Run(gather.Add(mine.data(), all.data(), bytes));
  std::vector<std::string> texts;
  if (!is_coordinator_) return texts;
  size_t first = 0;
  for (int64_t count : counts) {
    texts.push_back(all.substr(first, count));
    first += count;
  }
  return texts;
}

std::string RingcollController::Broadcast(std::string text) {
  int64_t bytes = static_cast<int64_t>(text.size());
  Run(RingcollCall(RC_BROADCAST, RC_INT64).Add(&bytes, &bytes, 1));
  text.resize(bytes);
  Run(RingcollCall(RC_BROADCAST, RC_UINT8).Add(text.data(), &text[0], bytes));
  return text;
}

void RingcollController::RecvReadyTensors(std::vector<std::string>& ready_to_reduce,
                                          std::vector<RequestList>& ready_list) {
  // Rank 0 has already put its own requests into the table, so its list stays empty.
  std::vector<std::string> texts = Gather("");
  ready_list.emplace_back();
  for (int rank = 1; rank < size_; ++rank) {
    RequestList requests;
    RequestList::ParseFromBytes(requests, reinterpret_cast<const uint8_t*>(texts[rank].data()));
    ready_list.push_back(std::move(requests));
  }
}

void RingcollController::SendReadyTensors(RequestList& message_list) {
  std::string text;
  RequestList::SerializeToString(message_list, text);
  Gather(text);
}

void RingcollController::SendFinalTensors(ResponseList& response_list) {
  std::string text;
  ResponseList::SerializeToString(response_list, text);
  Broadcast(std::move(text));
}

void RingcollController::RecvFinalTensors(ResponseList& response_list) {
  std::string text = Broadcast("");
  ResponseList::ParseFromBytes(response_list, reinterpret_cast<const uint8_t*>(text.data()));
}

void RingcollController::Bcast(void* buffer, size_t size, int root_rank,
                               Communicator communicator) {
  RingcollCall call(RC_BROADCAST, RC_UINT8);
  call.call.root = root_rank;
  RunOver(communicator, call.Add(buffer, buffer, static_cast<int64_t>(size)));
}

void RingcollController::AlltoallGetRecvSplits(const std::vector<int32_t>& splits,
                                               std::vector<int32_t>& recvsplits) {
  bool all_alike =
      std::all_of(splits.begin(), splits.end(), [&](int32_t split) { return split == splits[0]; });
  std::vector<Split> sent, received(size_);
  for (int32_t split : splits) sent.push_back({split, all_alike});
  sent.resize(size_);
  Run(RingcollCall(RC_ALLTOALL, RC_INT32).Add(sent.data(), received.data(), 2));
  recvsplits.clear();
  for (const Split& split : received) recvsplits.push_back(split.rows);
  splits_were_equal_ = std::all_of(received.begin(), received.end(), [&](const Split& split) {
    return split.of_all_ranks && split.rows == received[0].rows;
  });
}

void RingcollController::Barrier(Communicator communicator) {
  RunOver(communicator, RingcollCall(RC_BARRIER, RC_UINT8));
}

void RingcollController::Allgather2Ints(std::array<int, 2> values, std::vector<int>& recv_values) {
  recv_values.resize(values.size() * size_);
  Run(RingcollCall(RC_ALLGATHER, RC_INT32)
          .Add(values.data(), recv_values.data(), static_cast<int64_t>(values.size())));
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
