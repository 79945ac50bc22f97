#include "python/call.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/collectives.h"
#include "python/errors.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

constexpr auto kCollectives = [] {
  std::array<std::string_view, RC_COLLECTIVE_COUNT> names;
  for (size_t i = 0; i < names.size(); i++) names[i] = kCollectiveTraits[i].name;
  return names;
}();
constexpr std::array<std::string_view, RC_OP_COUNT> kOps = {"sum",     "average", "min",   "max",
                                                            "product", "bit_and", "bit_or"};

template <typename T, size_t N>
T lookup(const std::array<std::string_view, N>& names, std::string_view name, const char* what) {
  for (size_t i = 0; i < N; i++)
    if (names[i] == name) return static_cast<T>(i);
  std::string all;
  for (std::string_view each : names) all += fmt::format("{}{}", all.empty() ? "" : ", ", each);
  raise_invalid(fmt::format("\"{}\" is no {}. There are: {}", name, what, all));
}

constexpr int64_t kNone = -1;

/// Elements of a rank's input and output; kNone where the library ignores the buffer.
struct Shares {
  int64_t input;
  int64_t output;
  bool output_needed = true;
};

struct Parts {
  int64_t all;   // elements of all ranks' parts
  int64_t mine;  // elements of this rank's part
};

Parts parts_of(const Counts& counts, int64_t each, int rank, int size) {
  if (!counts) return {each * size, each};
  return {std::accumulate(counts->begin(), counts->end(), int64_t{0}), (*counts)[rank]};
}

void check_counts(const Counts& counts, int size, const char* name) {
  if (!counts) return;
  if (static_cast<int64_t>(counts->size()) != size)
    raise_invalid(fmt::format("{} has {} entries, and the communicator has {} ranks", name,
                              counts->size(), size));
  for (int64_t count : *counts)
    if (count < 0 ||
        count > std::numeric_limits<int64_t>::max() / size)  // so that no sum overflows
      raise_invalid(fmt::format("{} holds {}, which is no count of elements", name, count));
}

/// The factor for the C ABI, where 0 means 1 and -0.0 means 0.
double factor(double given) { return given == 0 ? -0.0 : given; }

/// Elements of a buffer with this extent.
int64_t elements_of(Extent extent, int64_t count, const Parts& sent, const Parts& received) {
  switch (extent) {
    case Extent::kVector:
      return count;
    case Extent::kOwnChunk:
      return sent.mine;
    case Extent::kAllChunks:
      return sent.all;
    case Extent::kReceived:
      return received.all;
    case Extent::kNone:
      break;
  }
  return kNone;
}

/// `count` is rc_buffer.count: the elements of one rank's part, or of a vector.
Shares shares_of(const rc_call& call, int64_t count, const Counts& counts,
                 const Counts& recv_counts, int rank, int size) {
  const CollectiveTraits& traits = traits_of(call.collective);
  bool root = rank == call.root;
  Parts sent = parts_of(counts, count, rank, size);
  Parts received = parts_of(recv_counts, count, rank, size);
  bool reads = is_looked_at(traits.reads, root), writes = is_looked_at(traits.writes, root);
  bool may_write = writes || traits.writes == Whose::kAllButRoot;
  return {.input = reads ? elements_of(traits.input, count, sent, received) : kNone,
          .output = may_write ? elements_of(traits.output, count, sent, received) : kNone,
          .output_needed = writes};
}

/// Elements of one part, derived from a tensor that is one part, or else from one that consists of
/// parts.
int64_t part_of(rc_collective collective, const Tensor* input, const Tensor* output, int size) {
  const CollectiveTraits& traits = traits_of(collective);
  bool by_output = !input || (output && traits.output == Extent::kOwnChunk);
  const Tensor& known = by_output ? *output : *input;
  Extent extent = by_output ? traits.output : traits.input;
  bool whole = extent == Extent::kAllChunks || extent == Extent::kReceived;
  if (!whole) return known.count();
  if (known.count() % size != 0)
    raise_invalid(fmt::format("{} elements cannot be divided among {} ranks equally: pass counts",
                              known.count(), size));
  return known.count() / size;
}

[[noreturn]] void raise_missing(const std::string& what) {
  raise_invalid(fmt::format("{} is missing: this rank needs one", what));
}

/// The memory that the library gets; null where it ignores the buffer. Raises InvalidArgument for a
/// wrong size.
void* sized(const Tensor* tensor, int64_t expected, bool needed, const std::string& what) {
  if (expected == kNone) return nullptr;
  if (!tensor && needed) raise_missing(what);
  if (!tensor) return nullptr;
  if (tensor->count() != expected)
    raise_invalid(
        fmt::format("{} has {} elements, and {} are needed", what, tensor->count(), expected));
  return tensor->data();
}

}  // namespace

std::vector<std::string> collectives() { return {kCollectives.begin(), kCollectives.end()}; }

Call::Call(const CallArguments& arguments, int rank, int size)
    : counts_(arguments.counts), recv_counts_(arguments.recv_counts) {
  call_.struct_size = sizeof(call_);
  call_.collective = lookup<rc_collective>(kCollectives, arguments.collective, "collective");
  const CollectiveTraits& traits = traits_of(call_.collective);
  call_.op = lookup<rc_op>(kOps, arguments.op, "op");
  call_.root = arguments.root;
  call_.prescale = factor(arguments.prescale);
  call_.postscale = factor(arguments.postscale);
  call_.timeout_s = arguments.timeout_s;
  if (traits.has_root && (call_.root < 0 || call_.root >= size))
    raise_invalid(fmt::format("root {} is not a rank: ranks are 0 to {}", call_.root, size - 1));
  check_counts(counts_, size, "counts");
  check_counts(recv_counts_, size, "recv_counts");
  if ((counts_ && !traits.takes_counts()) || (recv_counts_ && !traits.exchanges()))
    raise_invalid(fmt::format("{} takes no such counts: leave them out", traits.name));
  if (traits.exchanges() && counts_.has_value() != recv_counts_.has_value())
    raise_invalid(
        fmt::format("{} takes send_counts and recv_counts together, or neither", traits.name));
  if (traits.input != Extent::kNone) borrow(arguments, rank, size);
  call_.buffers = buffers_.data();
  call_.buffer_count = static_cast<int64_t>(buffers_.size());
  call_.counts = counts_ ? counts_->data() : nullptr;
  call_.recv_counts = recv_counts_ ? recv_counts_->data() : nullptr;
}

void Call::borrow(const CallArguments& arguments, int rank, int size) {
  size_t n = arguments.inputs.size();
  if (n == 0 || n != arguments.outputs.size())
    raise_invalid(
        fmt::format("there are {} inputs and {} outputs: pass one output for each input, and "
                    "at least one of each",
                    n, arguments.outputs.size()));
  if (n > 1 && traits_of(call_.collective).takes_counts())
    raise_invalid(fmt::format("{} takes one tensor, not {}", arguments.collective, n));
  tensors_.reserve(2 * n);  // borrow_pair() keeps pointers to its elements
  buffers_.reserve(n);
  for (size_t i = 0; i < n; i++) {
    auto prefix = fmt::format("{}: ", arguments.collective);
    auto suffix = n > 1 ? fmt::format(" {}", i) : std::string();
    borrow_pair(arguments.inputs[i], arguments.outputs[i], prefix, suffix, rank, size);
  }
  call_.dtype = dtype_.value_or(RC_UINT8);
}

void Call::borrow_pair(const py::object& input, const py::object& output, const std::string& prefix,
                       const std::string& suffix, int rank, int size) {
  std::string in_name = prefix + "the input" + suffix, out_name = prefix + "the output" + suffix;
  const Tensor* in = nullptr;
  const Tensor* out = nullptr;
  bool in_place = input.is(output);
  if (!input.is_none() && !in_place) in = &take(input, Access::kRead, in_name);
  if (!output.is_none()) out = &take(output, Access::kWrite, out_name);
  if (in_place) in = out;
  if (!in && !out) raise_invalid(fmt::format("{} and the output are both missing", in_name));
  bool reads = is_looked_at(traits_of(call_.collective).reads, rank == call_.root);
  if (reads && !in) raise_missing(in_name);  // or part_of() would take the size from the output
  int64_t count = counts_ ? (*counts_)[rank] : part_of(call_.collective, in, out, size);
  Shares shares = shares_of(call_, count, counts_, recv_counts_, rank, size);
  buffers_.push_back({sized(in, shares.input, true, in_name),
                      sized(out, shares.output, shares.output_needed, out_name), count});
}

const Tensor& Call::take(py::handle object, Access access, const std::string& what) {
  const Tensor& tensor = tensors_.emplace_back(object, access, what);
  if (dtype_ && *dtype_ != tensor.dtype())
    raise_invalid(
        fmt::format("{} is {}, and another tensor of the call is {}: pass one type for all", what,
                    name_of(tensor.dtype()), name_of(*dtype_)));
  dtype_ = tensor.dtype();
  return tensor;
}

}  // namespace ringcoll::python
