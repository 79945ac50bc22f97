#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "bootstrap/exchange.h"
#include "store/store.h"

namespace ringcoll {
namespace {

// Bytes gathered at a time from each rank. The function needs memory for the same length from every
// rank, and rank 0's blob may hold a topology of megabytes.
constexpr size_t kBlockBytes = 64 << 10;

class FunctionExchange : public Exchange {
 public:
  FunctionExchange(GatherFunction gather, Rank rank, Rank size)
      : gather_(std::move(gather)), rank_(rank), size_(size) {
    check(rank >= 0 && rank < size, Code::kInvalidArgument,
          "rank {} of a job of size {}: ranks are from 0 to size - 1", rank, size);
  }
  Rank rank() const override { return rank_; }
  Rank size() const override { return size_; }

  // The deadline is ignored: only the function of the caller knows how long it waits.
  std::vector<std::string> all_gather(const std::string& mine, Deadline) override {
    auto lengths = gather_equal<uint64_t>({mine.size()});
    uint64_t longest = *std::ranges::max_element(lengths);
    check(longest <= kMaxValueBytes, Code::kTransport,
          "the exchange function says that one rank gave {} bytes; it must gather by rank",
          longest);
    std::vector<std::string> blobs(size_);
    for (uint64_t at = 0; at < longest; at += kBlockBytes) {
      std::vector<char> block(std::min<uint64_t>(longest - at, kBlockBytes));
      auto part = [&](uint64_t length) {
        return std::min<uint64_t>(length - std::min(at, length), block.size());
      };
      std::copy_n(mine.begin() + static_cast<ptrdiff_t>(std::min(at, mine.size())),
                  part(mine.size()), block.begin());
      std::vector<char> all = gather_equal(block);
      for (Rank rank = 0; rank < size_; rank++)
        blobs[rank].append(all.data() + block.size() * rank, part(lengths[rank]));
    }
    return blobs;
  }

 private:
  template <typename T>
  std::vector<T> gather_equal(const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * size_);
    check(gather_(mine.data(), mine.size() * sizeof(T), all.data()), Code::kTransport,
          "the exchange function of the caller failed; see the caller's log for the cause");
    // This also finds two processes that claim one rank.
    check(std::equal(mine.begin(), mine.end(), all.begin() + mine.size() * rank_),
          Code::kInvalidArgument,
          "the exchange function did not return to rank {} what that rank put in: two processes "
          "claim this rank, or the function does not gather by rank",
          rank_);
    return all;
  }

  GatherFunction gather_;
  Rank rank_;
  Rank size_;
};

}  // namespace

std::unique_ptr<Exchange> make_function_exchange(GatherFunction gather, Rank rank, Rank size) {
  return std::make_unique<FunctionExchange>(std::move(gather), rank, size);
}

}  // namespace ringcoll
