#include "coll/partition.h"

#include <algorithm>

namespace ringcoll {
namespace {

template <typename Byte>
Byte* advance(Byte* p, int64_t bytes) {
  return p ? p + bytes : nullptr;
}

}  // namespace

void Partition::add_strip(const Tensor& tensor) {
  bool has_input = tensor.input != nullptr, has_output = tensor.output != nullptr;
  strips_.push_back({tensors_.size(), 1, tensor.count, has_input, has_output});
  tensors_.push_back(tensor);
  starts_.push_back(0);
}

void Partition::reset(const Call& call, Rank rank, std::span<const Rank> order) {
  tensors_.clear();
  starts_.clear();
  strips_.clear();
  loans_.clear();
  element_bytes_ = size_of(call.dtype);
  const CollectiveTraits& traits = traits_of(call.collective);
  if (traits.is_vector()) {
    bool reads = is_looked_at(traits.reads, rank == call.root);
    bool writes = is_looked_at(traits.writes, rank == call.root);
    if (traits.writes == Whose::kAllButRoot && rank == call.root)
      writes = std::ranges::all_of(call.buffers,
                                   [](const rc_buffer& b) { return b.output || b.count == 0; });
    if (traits.excludes_own() && rank == 0) writes = false;  // the run fills that output
    int64_t at = 0;
    for (const rc_buffer& b : call.buffers) {
      if (b.count == 0) continue;
      auto* input = static_cast<const std::byte*>(b.input);
      auto* output = static_cast<std::byte*>(b.output);
      tensors_.push_back({reads ? input : nullptr, writes ? output : nullptr, b.count});
      starts_.push_back(at);
      at += b.count;
    }
    strips_.push_back({0, tensors_.size(), at, reads, writes});
  } else if (traits.exchanges()) {
    add_alltoall(call, order);
  } else if (traits.takes_counts()) {
    add_chunks(call, rank, order);
  }
  ends_key_ = 0;
  // In a chunked collective, the collective, rank and root determine which strips have inputs and
  // outputs. A null chunk is empty, so it does not matter. Only the strip of a vector can differ.
  if (call.is_vector()) ends_key_ = strips_[0].has_input | strips_[0].has_output << 1;
}

void Partition::replace(const rc_buffer& buffer) {
  loans_.clear();
  for (Tensor& tensor : tensors_) {
    if (tensor.input) tensor.input = static_cast<const std::byte*>(buffer.input) + tensor.input_at;
    if (tensor.output) tensor.output = static_cast<std::byte*>(buffer.output) + tensor.output_at;
    tensor.loans[0] = tensor.loans[1] = kNoLoan;
  }
}

// A collective that gathers has a rank's own chunk as input and all chunks as output. The others
// have all chunks as input and the own chunk as output.
void Partition::add_chunks(const Call& call, Rank rank, std::span<const Rank> order) {
  const CollectiveTraits& traits = traits_of(call.collective);
  bool gathers = traits.gathers();
  bool whole = !traits.has_root || rank == call.root;
  auto* input = static_cast<const std::byte*>(call.buffers[0].input);
  auto* output = static_cast<std::byte*>(call.buffers[0].output);
  auto bytes = static_cast<int64_t>(element_bytes_);
  std::vector<int64_t> starts(order.size() + 1, 0);
  for (size_t r = 0; r < order.size(); r++)
    starts[r + 1] = starts[r] + call.count_of(static_cast<Rank>(r)) * bytes;
  for (Rank r : order) {
    bool own = r == rank, reads = gathers ? own : whole, writes = gathers ? whole : own;
    int64_t input_at = gathers ? 0 : starts[r], output_at = gathers ? starts[r] : 0;
    add_strip({reads ? advance(input, input_at) : nullptr,
               writes ? advance(output, output_at) : nullptr, call.count_of(r), input_at,
               output_at});
  }
}

void Partition::add_alltoall(const Call& call, std::span<const Rank> order) {
  auto bytes = static_cast<int64_t>(element_bytes_);
  std::vector<int64_t> sends(order.size() + 1, 0), recvs(order.size() + 1, 0);
  for (size_t i = 0; i < order.size(); i++) {
    sends[i + 1] = sends[i] + call.count_of(static_cast<Rank>(i)) * bytes;
    recvs[i + 1] = recvs[i] + call.recv_count_of(static_cast<Rank>(i)) * bytes;
  }
  const auto* input = static_cast<const std::byte*>(call.buffers[0].input);
  auto* output = static_cast<std::byte*>(call.buffers[0].output);
  for (Rank r : order)
    add_strip({advance(input, sends[r]), nullptr, call.count_of(r), sends[r], 0});
  for (Rank r : order)
    add_strip({nullptr, advance(output, recvs[r]), call.recv_count_of(r), 0, recvs[r]});
}

std::span<Loan> Partition::loans(size_t least_bytes) {
  for (Tensor& tensor : tensors_) {
    size_t bytes = tensor.count * element_bytes_;
    if (bytes < least_bytes) continue;
    auto add = [&](const std::byte* data, bool written) {
      loans_.push_back({const_cast<std::byte*>(data), bytes, written});
      return loans_.size() - 1;
    };
    if (tensor.output) tensor.loans[1] = add(tensor.output, true);
    if (tensor.input)
      tensor.loans[0] = tensor.input == tensor.output ? tensor.loans[1] : add(tensor.input, false);
  }
  return loans_;
}

bool Partition::lent(const Tensor& tensor) const {
  auto granted = [&](const std::byte* data, size_t loan) {
    return !data || (loan != kNoLoan && loans_[loan].granted);
  };
  return granted(tensor.input, tensor.loans[0]) && granted(tensor.output, tensor.loans[1]);
}

int64_t Partition::longest_strip() const {
  int64_t longest = 0;
  for (const Strip& strip : strips_) longest = std::max(longest, strip.count);
  return longest;
}

int64_t Partition::elements() const {
  int64_t all = 0;
  for (const Strip& strip : strips_) all += strip.count;
  return all;
}

void Partition::counts_of(int64_t k, int64_t stretch, std::vector<int64_t>* counts) const {
  counts->clear();
  for (const Strip& strip : strips_)
    counts->push_back(std::clamp<int64_t>(strip.count - k * stretch, 0, stretch));
}

void Partition::fragments_of(int64_t k, int64_t stretch, std::vector<Fragment>* fragments) const {
  fragments->clear();
  auto bytes = static_cast<int64_t>(element_bytes_);
  int64_t local = 0;
  for (const Strip& strip : strips_) {
    int64_t from = k * stretch, to = std::min(strip.count, from + stretch);
    if (from >= to) continue;
    auto starts = std::span(starts_).subspan(strip.first_tensor, strip.tensors);
    size_t i = strip.tensors == 1 ? 0 : std::ranges::upper_bound(starts, from) - starts.begin() - 1;
    for (; from < to; i++) {
      const Tensor& tensor = tensors_[strip.first_tensor + i];
      int64_t offset = from - starts[i], count = std::min(to - from, tensor.count - offset);
      fragments->push_back({local, count, advance(tensor.input, offset * bytes),
                            advance(tensor.output, offset * bytes), lent(tensor)});
      local += count;
      from += count;
    }
  }
}

// Reads addresses from the buffer, and not from tensors that replace() has just written. Addresses
// are loaded in pairs, and such a load waits until both stores have left the store buffer. That
// would take a tenth of a call of 4 B.
void Partition::readdress(std::span<Fragment> fragments, std::span<const rc_buffer> buffers) const {
  auto tensor = tensors_.begin();
  for (Fragment& fragment : fragments) {
    auto* input = static_cast<const std::byte*>(buffers[0].input);
    auto* output = static_cast<std::byte*>(buffers[0].output);
    fragment.input = tensor->input ? input + tensor->input_at : nullptr;
    fragment.output = tensor->output ? output + tensor->output_at : nullptr;
    fragment.lent = false;
    ++tensor;
  }
}

Ends Partition::ends_of(std::span<const int64_t> counts) const {
  Ends ends;
  int64_t at = 0;
  for (size_t i = 0; i < strips_.size(); i++) {
    Range range{at, counts[i]};
    at += counts[i];
    if (range.empty()) continue;
    if (strips_[i].has_input) ends.inputs.push_back(range);
    if (strips_[i].has_output) ends.outputs.push_back(range);
  }
  return ends;
}

}  // namespace ringcoll
