// Of the family of LZ77 (Ziv and Lempel, 1977): literal bytes and copies in turn, each number in as
// many bytes as it needs, seven bits in each. A copy of length 0 is the end.
#include "bootstrap/repeats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

// Shorter copies take as many bytes as they save.
constexpr size_t kShortestCopy = 8;
constexpr int kHashBits = 16;

uint64_t word_at(std::string_view bytes, size_t at) {
  uint64_t word;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}
static_assert(sizeof(uint64_t) == kShortestCopy);

// Multiplication by 2^64 over the golden ratio (Knuth, volume 3, 6.4).
size_t hash_of(uint64_t word) { return (word * 0x9e3779b97f4a7c15) >> (64 - kHashBits); }

void put_number(std::string* out, size_t number) {
  for (; number >= 0x80; number >>= 7) out->push_back(static_cast<char>(number | 0x80));
  out->push_back(static_cast<char>(number));
}

[[noreturn]] void throw_damaged() {
  throw Error(Code::kTransport, "what was folded together cannot be unfolded: it is damaged");
}

size_t take_number(std::string_view* in) {
  size_t number = 0;
  for (int shift = 0; shift < 42; shift += 7) {
    if (in->empty()) throw_damaged();
    auto byte = static_cast<unsigned char>(in->front());
    in->remove_prefix(1);
    number |= static_cast<size_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
  throw_damaged();
}

size_t common_length(std::string_view bytes, size_t earlier, size_t at) {
  size_t length = 0;
  while (at + length < bytes.size() && bytes[earlier + length] == bytes[at + length]) length++;
  return length;
}

}  // namespace

std::string fold(std::string_view bytes) {
  std::string out;
  std::vector<size_t> last(size_t{1} << kHashBits);  // place of a word, one more than it
  size_t literals = 0;                               // where those that are not written yet begin
  auto put_literals = [&](size_t end) {
    put_number(&out, end - literals);
    out.append(bytes.substr(literals, end - literals));
  };
  for (size_t at = 0; at + kShortestCopy <= bytes.size();) {
    uint64_t word = word_at(bytes, at);
    size_t& seen = last[hash_of(word)];
    size_t earlier = seen;
    seen = at + 1;
    if (earlier == 0 || word_at(bytes, earlier - 1) != word) {
      at++;
      continue;
    }
    size_t length = common_length(bytes, earlier - 1, at);
    put_literals(at);
    put_number(&out, length);
    put_number(&out, at - (earlier - 1));
    // What lies in the copy is found at its first place, too, but farther back.
    for (size_t next = at + 1; next < at + length && next + kShortestCopy <= bytes.size(); next++)
      last[hash_of(word_at(bytes, next))] = next + 1;
    literals = at += length;
  }
  put_literals(bytes.size());
  put_number(&out, 0);
  return out;
}

std::string unfold(std::string_view folded, size_t limit) {
  std::string out;
  for (;;) {
    size_t literals = take_number(&folded);
    if (literals > folded.size() || out.size() + literals > limit) throw_damaged();
    out.append(folded.substr(0, literals));
    folded.remove_prefix(literals);
    size_t length = take_number(&folded);
    if (length == 0) break;
    size_t back = take_number(&folded);
    if (back == 0 || back > out.size() || length > limit - out.size()) throw_damaged();
    // In steps, for a copy may go on in itself.
    for (size_t from = out.size() - back; length > 0;) {
      size_t step = std::min(length, out.size() - from);
      out.append(out, from, step);
      from += step;
      length -= step;
    }
  }
  if (!folded.empty()) throw_damaged();
  return out;
}

}  // namespace ringcoll
