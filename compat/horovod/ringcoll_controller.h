// Horovod's controller over ringcoll: the ranks of a process set agree which tensors are ready.
#pragma once

#include "../controller.h"
#include "ringcoll_context.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Runs on Horovod's background thread. When the communicator has failed, every function throws
/// std::runtime_error with ringcoll's message, and Horovod then shuts down.
class RingcollController : public Controller {
 public:
  using Controller::Controller;

  int GetTypeSize(DataType dtype) override;
  void CrossRankBitwiseAnd(std::vector<long long>& bitvector, int count) override;
  void CrossRankBitwiseOr(std::vector<long long>& bitvector, int count) override;
  void RecvReadyTensors(std::vector<std::string>& ready_to_reduce,
                        std::vector<RequestList>& ready_list) override;
  void SendFinalTensors(ResponseList& response_list) override;
  void SendReadyTensors(RequestList& message_list) override;
  void RecvFinalTensors(ResponseList& response_list) override;
  void Bcast(void* buffer, size_t size, int root_rank, Communicator communicator) override;
  void AlltoallGetRecvSplits(const std::vector<int32_t>& splits,
                             std::vector<int32_t>& recvsplits) override;
  /// True if at the last AlltoallGetRecvSplits() every rank sent the same amount to every other.
  /// Equal on all ranks.
  bool SplitsWereEqual() const { return splits_were_equal_; }
  void Barrier(Communicator communicator) override;
  void Allgather2Ints(std::array<int, 2> values, std::vector<int>& recv_values) override;

 protected:
  void DoInitialization() override;

 private:
  void Run(RingcollCall call);
  void RunOver(Communicator communicator, RingcollCall call);
  void Combine(std::vector<long long>& bitvector, int count, rc_op op);
  /// Gathers one text of every rank on rank 0; the result is empty on the others.
  std::vector<std::string> Gather(const std::string& mine);
  /// Returns rank 0's text on every rank.
  std::string Broadcast(std::string text);

  std::vector<int> cross_comm_ranks_;
  bool splits_were_equal_ = false;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
