#include "ringcoll_operations.h"

#include "ringcoll_context.h"
#include "ringcoll_controller.h"
#include "ringcoll_execution.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

rc_dtype type_of(const TensorTableEntry& entry) {
  switch (entry.tensor->dtype()) {
    case HOROVOD_UINT8:
      return RC_UINT8;
    case HOROVOD_INT8:
      return RC_INT8;
    case HOROVOD_UINT16:
      return RC_UINT16;
    case HOROVOD_INT16:
      return RC_INT16;
    case HOROVOD_INT32:
      return RC_INT32;
    case HOROVOD_INT64:
      return RC_INT64;
    case HOROVOD_FLOAT16:
      return RC_FLOAT16;
    case HOROVOD_BFLOAT16:
      return RC_BFLOAT16;
    case HOROVOD_FLOAT32:
      return RC_FLOAT32;
    case HOROVOD_FLOAT64:
      return RC_FLOAT64;
    case HOROVOD_BOOL:
      return RC_BOOL;
    default:
      throw std::logic_error("Type " + DataType_Name(entry.tensor->dtype()) +
                             " is not supported by RINGCOLL");
  }
}

rc_op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::AVERAGE:  // `postscale` has its factor, as in Horovod's other operations
      return RC_SUM;
    case ReduceOp::MIN:
      return RC_MIN;
    case ReduceOp::MAX:
      return RC_MAX;
    case ReduceOp::PRODUCT:
      return RC_PRODUCT;
    default:
      throw std::logic_error("Reduction op type not supported by RINGCOLL");
  }
}

// Sets the factors of a reduction. A zero is written as -0.0, since a field of zero means "no
// factor".
void set_scale(const Response& response, int divisor, rc_call* call) {
  double after = response.postscale_factor() / divisor;
  if (call->dtype == RC_BOOL && (response.prescale_factor() != 1 || after != 1)) {
    // The text equals that of Horovod's other operations.
    throw std::logic_error("Type bool not supported by ScaleBufferCPUImpl.");
  }
  call->prescale = response.prescale_factor() == 0 ? -0.0 : response.prescale_factor();
  call->postscale = after == 0 ? -0.0 : after;
}

void* output_of(const TensorTableEntry& entry) { return const_cast<void*>(entry.output->data()); }

ProcessSet& process_set_of(HorovodGlobalState* state, const TensorTableEntry& entry) {
  return state->process_set_table.Get(entry.process_set_id);
}

}  // namespace

bool ringcoll_takes_as_they_lie(const HorovodGlobalState& state,
                                const std::vector<TensorTableEntry>& entries,
                                const Response& response) {
  return state.cpu_operation == LibType::RINGCOLL && ringcoll_fits(entries) &&
         response.response_type() != Response::ADASUM;
}

Status RingcollAllreduce::Execute(std::vector<TensorTableEntry>& entries,
                                  const Response& response) {
  WaitForData(entries);
  return ringcoll_status([&] {
    Controller& controller = *process_set_of(global_state_, entries[0]).controller;
    bool average = response.reduce_op() == ReduceOp::AVERAGE;
    RingcollCall call(RC_ALLREDUCE, type_of(entries[0]));
    call.call.op = op_of(response.reduce_op());
    set_scale(response, average ? controller.GetSize() : 1, &call.call);
    // On a rank that has joined, Horovod has made entries of zeros here.
    for (const auto& entry : entries) {
      call.Add(entry.tensor->data(), output_of(entry), entry.tensor->shape().num_elements());
    }
    RingcollActivity activity(global_state_, entries, "RINGCOLL_ALLREDUCE");
    RingcollContext::Get().Run(controller, std::move(call));
    return Status::OK();
  });
}

Status RingcollAllgather::Execute(std::vector<TensorTableEntry>& entries,
                                  const Response& response) {
  WaitForData(entries);
  return ringcoll_status([&] {
    Controller& controller = *process_set_of(global_state_, entries[0]).controller;
    size_t size = controller.GetSize();
    std::vector<int64_t> counts(entries.size() * size);  // by entry, then by rank
    std::vector<int64_t*> rows(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) rows[i] = &counts[i * size];
    global_state_->timeline.ActivityStartAll(entries, ALLOCATE_OUTPUT);
    int64_t** table = rows.data();
    Status status = AllocateOutput(entries, response, table);
    global_state_->timeline.ActivityEndAll(entries);
    if (!status.ok()) return status;

    // One call for each tensor, which then goes straight to its place. A call costs less than
    // copies into and out of a fusion buffer.
    RingcollActivity activity(global_state_, entries, "RINGCOLL_ALLGATHER");
    for (size_t i = 0; i < entries.size(); ++i) {
      RingcollCall call(RC_ALLGATHER, type_of(entries[i]));
      call.call.counts = rows[i];
      call.Add(entries[i].tensor->data(), output_of(entries[i]), rows[i][controller.GetRank()]);
      RingcollContext::Get().Run(controller, std::move(call));
    }
    return Status::OK();
  });
}

Status RingcollBroadcast::Execute(std::vector<TensorTableEntry>& entries, const Response&) {
  WaitForData(entries);
  return ringcoll_status([&] {
    auto& entry = entries[0];
    Controller& controller = *process_set_of(global_state_, entry).controller;
    RingcollCall call(RC_BROADCAST, type_of(entry));
    call.call.root = entry.root_rank;
    const void* input = entry.tensor->data();
    bool is_root = controller.GetRank() == entry.root_rank;
    call.Add(input, is_root ? const_cast<void*>(input) : output_of(entry),
             entry.tensor->shape().num_elements());
    RingcollActivity activity(global_state_, entries, "RINGCOLL_BCAST");
    RingcollContext::Get().Run(controller, std::move(call));
    return Status::OK();
  });
}

Status RingcollAlltoall::Execute(std::vector<TensorTableEntry>& entries, const Response&) {
  WaitForData(entries);
  return ringcoll_status([&] {
    auto& entry = entries[0];
    Controller& controller = *process_set_of(global_state_, entry).controller;
    std::vector<int64_t> send_offsets, recv_offsets, send_counts, recv_counts;
    Status status =
        PrepareOutputAndParams(entry, send_offsets, recv_offsets, send_counts, recv_counts);
    if (!status.ok()) return status;
    RingcollCall call(RC_ALLTOALL, type_of(entry));
    auto* own = dynamic_cast<RingcollController*>(&controller);
    bool equal = own && own->SplitsWereEqual();
    if (!equal) {
      call.call.counts = send_counts.data();
      call.call.recv_counts = recv_counts.data();
    }
    call.Add(entry.tensor->data(), output_of(entry), equal ? send_counts[0] : 0);
    RingcollActivity activity(global_state_, entries, "RINGCOLL_ALLTOALL");
    RingcollContext::Get().Run(controller, std::move(call));
    return Status::OK();
  });
}

Status RingcollReducescatter::Execute(std::vector<TensorTableEntry>& entries,
                                      const Response& response) {
  WaitForData(entries);
  return ringcoll_status([&] {
    Controller& controller = *process_set_of(global_state_, entries[0]).controller;
    auto shapes = ComputeOutputShapes(entries, controller.GetSize());
    RingcollActivity activity(global_state_, entries, "RINGCOLL_REDUCESCATTER");
    for (size_t i = 0; i < entries.size(); ++i) {
      std::vector<int64_t> counts;
      for (const auto& of_rank : shapes) counts.push_back(of_rank[i].num_elements());
      RingcollCall call(RC_REDUCE_SCATTER, type_of(entries[i]));
      call.call.op = RC_SUM;
      call.call.counts = counts.data();
      set_scale(response, 1, &call.call);  // the factor already has an average's divisor
      call.Add(entries[i].tensor->data(), output_of(entries[i]), counts[controller.GetRank()]);
      RingcollContext::Get().Run(controller, std::move(call));
    }
    return Status::OK();
  });
}

bool RingcollAllreduce::Enabled(const ParameterManager&,
                                const std::vector<TensorTableEntry>& entries,
                                const Response&) const {
  return ringcoll_fits(entries);
}

bool RingcollAllgather::Enabled(const ParameterManager&,
                                const std::vector<TensorTableEntry>& entries,
                                const Response&) const {
  return ringcoll_fits(entries);
}

bool RingcollBroadcast::Enabled(const ParameterManager&,
                                const std::vector<TensorTableEntry>& entries,
                                const Response&) const {
  return ringcoll_fits(entries);
}

bool RingcollAlltoall::Enabled(const ParameterManager&,
                               const std::vector<TensorTableEntry>& entries,
                               const Response&) const {
  return ringcoll_fits(entries);
}

bool RingcollReducescatter::Enabled(const ParameterManager&,
                                    const std::vector<TensorTableEntry>& entries,
                                    const Response&) const {
  return ringcoll_fits(entries);
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
