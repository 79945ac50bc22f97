// Horovod's collective operations over ringcoll, on tensors in host memory.
//
// The classes have no data members of their own: what they need is in the side table of
// RingcollContext.
#pragma once

#include "../ops/collective_operations.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Whether RINGCOLL takes these tensors as they lie, so that Horovod needs no buffer to fuse them:
/// all on the CPU, but for Adasum, which is Horovod's own.
bool ringcoll_takes_as_they_lie(const HorovodGlobalState& state,
                                const std::vector<TensorTableEntry>& entries,
                                const Response& response);

/// Fused tensors are handed to ringcoll as they lie, in one call; Horovod's fusion buffer is not
/// used. A failed call becomes Status::UnknownError, which Python raises as HorovodInternalError.
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
