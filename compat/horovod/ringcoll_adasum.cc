#include "ringcoll_adasum.h"

#include <climits>

#include "ringcoll_bfloat16.h"
#include "ringcoll_execution.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

int log2_of(int power_of_two) { return __builtin_ctz(static_cast<unsigned>(power_of_two)); }

int64_t bytes_of(const std::vector<TensorTableEntry>& entries) {
  int64_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.tensor->size();
  return bytes;
}

void check(const std::vector<TensorTableEntry>& entries, int ranks) {
  if (entries[0].process_set_id != 0) {
    throw std::logic_error("Adasum does not support non-global process sets yet.");
  }
  if (!IsPowerOfTwo(ranks)) {
    throw std::logic_error("Running Adasum with non-power of 2 ranks is not supported yet.");
  }
  // The template counts bytes in int.
  if (bytes_of(entries) > INT_MAX) {
    throw std::logic_error("Adasum of a tensor of 2 GiB or more is not supported.");
  }
}

}  // namespace

RingcollAdasum::RingcollAdasum(HorovodGlobalState* state) : Adasum(state), AllreduceOp(state) {}

Controller& RingcollAdasum::controller() const {
  return *global_state_->process_set_table.Get(0).controller;
}

bool RingcollAdasum::Enabled(const ParameterManager&, const std::vector<TensorTableEntry>& entries,
                             const Response&) const {
  return ringcoll_fits(entries);
}

Status RingcollAdasum::Execute(std::vector<TensorTableEntry>& entries, const Response& response) {
  WaitForData(entries);
  return ringcoll_status([&] {
    check(entries, controller().GetSize());
    if (entries.size() == 1) {
      const auto& entry = entries[0];
      void* output = const_cast<void*>(entry.output->data());
      if (output != entry.tensor->data()) {
        std::memcpy(output, entry.tensor->data(), entry.tensor->size());
      }
      Reduce(entries, response, output);
      return Status::OK();
    }
    const void* input;
    void* fused;
    size_t bytes;
    MemcpyInFusionBuffer(entries, input, fused, bytes);
    Reduce(entries, response, fused);
    MemcpyOutFusionBuffer(fused, entries);
    return Status::OK();
  });
}

void RingcollAdasum::Reduce(std::vector<TensorTableEntry>& entries, const Response& response,
                            void* buffer) {
  std::vector<int> counts;  // a copy, since the template changes it
  for (const auto& entry : entries) {
    counts.push_back(static_cast<int>(entry.tensor->shape().num_elements()));
  }
  // In each step, norms and dot products are summed over the ranks that hold parts of the same two
  // vectors.
  std::vector<RingcollCube> cubes;
  int dimensions = log2_of(controller().GetSize());
  for (int i = 1; i <= dimensions; ++i) cubes.push_back({i});
  int64_t elements = NumElements(entries);

  RingcollActivity activity(global_state_, entries, "RINGCOLL_ADASUM");
  if (response.prescale_factor() != 1) {
    ScaleBuffer(response.prescale_factor(), entries, buffer, buffer, elements);
  }
  DispatchFusedAllreduce(entries, buffer, GetRecvBuffer(static_cast<int>(bytes_of(entries))),
                         counts, /*start_level=*/1, {dimensions}, /*tag=*/0, cubes.data(),
                         entries[0].tensor->dtype(), global_state_);
  if (response.postscale_factor() != 1) {
    ScaleBuffer(response.postscale_factor(), entries, buffer, buffer, elements);
  }
}

void RingcollAdasum::ScaleBuffer(double factor, const std::vector<TensorTableEntry>& entries,
                                 const void* input, void* output, int64_t count) {
  if (entries[0].tensor->dtype() != HOROVOD_BFLOAT16) {
    return AllreduceOp::ScaleBuffer(factor, entries, input, output, count);
  }
  scale_bfloat16(static_cast<const uint16_t*>(input), static_cast<uint16_t*>(output), count,
                 factor);
}

void RingcollAdasum::RunWithPeer(int dimension, RingcollCall call) {
  int rank = controller().GetRank();
  int peer = rank ^ 1 << dimension;
  std::string name = "adasum_" + std::to_string(dimension);
  RingcollContext::Get().RunAmong(controller(), {std::min(rank, peer), std::max(rank, peer)},
                                  name.c_str(), std::move(call));
}

void RingcollAdasum::PointToPointSendRecv(void* input, int64_t input_bytes, void* output,
                                          int64_t output_bytes, DataType, int peer, int,
                                          RingcollCube, HorovodGlobalState*) {
  int rank = controller().GetRank();
  int64_t sent[2] = {0, 0};
  int64_t received[2] = {0, 0};
  sent[peer > rank] = input_bytes;
  received[peer > rank] = output_bytes;
  RingcollCall exchange(RC_ALLTOALL, RC_UINT8);
  exchange.call.counts = sent;
  exchange.call.recv_counts = received;
  exchange.Add(input, output, 0);
  RunWithPeer(log2_of(rank ^ peer), std::move(exchange));
}

// Sums along one dimension after the other. Both ranks of a pair add the same two numbers, so all
// ranks end with the same bits.
void RingcollAdasum::SumAllreduceWithComm(std::vector<TensorTableEntry>&, void* data, int count,
                                          DataType, RingcollCube cube, HorovodGlobalState*) {
  for (int dimension = 0; dimension < cube.dimensions; ++dimension) {
    RingcollCall sum(RC_ALLREDUCE, RC_FLOAT64);
    sum.Add(data, data, count);
    RunWithPeer(dimension, std::move(sum));
  }
}

int RingcollAdasum::GetLocalRankWithComm(RingcollCube) { return controller().GetRank(); }

int RingcollAdasum::GetSizeWithComm(RingcollCube cube) { return 1 << cube.dimensions; }

void RingcollAdasum::DispatchComputeDotAndNormSqrds(const void* a, const void* b, DataType type,
                                                    int count, double& dot, double& a_norm_squared,
                                                    double& b_norm_squared, int layer) {
  if (type != HOROVOD_BFLOAT16) {
    return Adasum::DispatchComputeDotAndNormSqrds(a, b, type, count, dot, a_norm_squared,
                                                  b_norm_squared, layer);
  }
  const auto* left = static_cast<const uint16_t*>(a);
  const auto* right = static_cast<const uint16_t*>(b);
  dot = a_norm_squared = b_norm_squared = 0;
  for (int i = 0; i < count; ++i) {
    double x = widen_bfloat16(left[i]);
    double y = widen_bfloat16(right[i]);
    dot += x * y;
    a_norm_squared += x * x;
    b_norm_squared += y * y;
  }
}

void RingcollAdasum::DispatchScaledAdd(DataType type, int count, double a_factor, void* a,
                                       double b_factor, void* b, int layer) {
  if (type != HOROVOD_BFLOAT16) {
    return Adasum::DispatchScaledAdd(type, count, a_factor, a, b_factor, b, layer);
  }
  auto* sum = static_cast<uint16_t*>(a);
  const auto* other = static_cast<const uint16_t*>(b);
  for (int i = 0; i < count; ++i) {
    sum[i] = narrow_bfloat16(static_cast<float>(a_factor * widen_bfloat16(sum[i]) +
                                                b_factor * widen_bfloat16(other[i])));
  }
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
