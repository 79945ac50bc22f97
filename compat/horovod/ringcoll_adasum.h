// Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020) over
// ringcoll, on tensors in host memory. Horovod's own template has the scheme; this class exchanges
// its messages and sums.
#pragma once

#include "../controller.h"
#include "../ops/adasum/adasum.h"
#include "../ops/collective_operations.h"
#include "ringcoll_context.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// The template's communicator: a cube of those ranks of process set 0 whose numbers differ only in
/// the lowest `dimensions` bits. In each dimension a rank has one peer, and a communicator with it.
struct RingcollCube {
  int dimensions;
};

/// The number of ranks must be a power of two, as with Horovod's other operations. A failed call
/// becomes Status::UnknownError, which Python raises as HorovodInternalError.
class RingcollAdasum : public Adasum<RingcollCube>, public AllreduceOp {
 public:
  explicit RingcollAdasum(HorovodGlobalState* state);
  Status Execute(std::vector<TensorTableEntry>& entries, const Response& response) override;
  bool Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
               const Response& response) const override;

 private:
  void PointToPointSendRecv(void* input, int64_t input_bytes, void* output, int64_t output_bytes,
                            DataType type, int peer, int tag, RingcollCube cube,
                            HorovodGlobalState* state) override;
  void SumAllreduceWithComm(std::vector<TensorTableEntry>& entries, void* data, int count,
                            DataType type, RingcollCube cube, HorovodGlobalState* state) override;
  int GetLocalRankWithComm(RingcollCube cube) override;
  int GetSizeWithComm(RingcollCube cube) override;
  void DispatchComputeDotAndNormSqrds(const void* a, const void* b, DataType type, int count,
                                      double& dot, double& a_norm_squared, double& b_norm_squared,
                                      int layer) override;
  void DispatchScaledAdd(DataType type, int count, double a_factor, void* a, double b_factor,
                         void* b, int layer) override;
  /// Supports bfloat16, too.
  void ScaleBuffer(double factor, const std::vector<TensorTableEntry>& entries, const void* input,
                   void* output, int64_t count) override;
  /// Reduces all entries in place. They lie one after the other in `buffer`.
  void Reduce(std::vector<TensorTableEntry>& entries, const Response& response, void* buffer);
  /// Makes a call on the communicator with the peer along `dimension`.
  void RunWithPeer(int dimension, RingcollCall call);
  Controller& controller() const;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
