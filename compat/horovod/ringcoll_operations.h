// Horovod's collective operations over ringcoll, on tensors in host memory.
//
// The classes have no data members: their state is in RingcollContext.
#pragma once

#include "../ops/collective_operations.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// True if RINGCOLL takes these tensors without Horovod's fusion buffer: all tensors on the CPU,
/// except for Adasum, which is Horovod's own.
bool ringcoll_takes_as_they_lie(const HorovodGlobalState& state,
                                const std::vector<TensorTableEntry>& entries,
                                const Response& response);

/// Passes fused tensors to ringcoll in one call as a list of buffers, without Horovod's fusion
/// buffer. A failed call becomes Status::UnknownError, which Python raises as HorovodInternalError.
class RingcollAllreduce : public AllreduceOp {
 public:
  using AllreduceOp::AllreduceOp;
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;
};

class RingcollAllgather : public AllgatherOp {
 public:
  using AllgatherOp::AllgatherOp;
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;
};

class RingcollBroadcast : public BroadcastOp {
 public:
  using BroadcastOp::BroadcastOp;
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;
};

class RingcollAlltoall : public AlltoallOp {
 public:
  using AlltoallOp::AlltoallOp;
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;
};

class RingcollReducescatter : public ReducescatterOp {
 public:
  using ReducescatterOp::ReducescatterOp;
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
