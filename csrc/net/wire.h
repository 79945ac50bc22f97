// Encodes values for a wire or a store: fixed widths, little-endian. Every length is checked before
// it is used.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace ringcoll {

static_assert(std::endian::native == std::endian::little, "integers go over the wire as they are");

class WireWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  /// Appends a 32-bit length and the bytes.
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class WireReader {
 public:
  /// `what` names the message in errors. Both arguments are borrowed.
  WireReader(std::string_view in, const char* what) : in_(in), what_(what) {}

  /// Throws Error(kTransport) if the message is too short.
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  /// Reads a text of at most `limit` bytes. Throws Error(kTransport).
  std::string get_text(size_t limit) { return std::string(get_view(limit)); }
  /// The same, as a view into the message.
  std::string_view get_view(size_t limit) {
    auto size = get<uint32_t>();
    check(size <= limit, Code::kTransport, "{}: a field has {} bytes, at most {} are allowed; {}",
          what_, size, limit, kRemedy);
    return take(size);
  }
  /// Throws Error(kTransport) if anything is left.
  void finish() const {
    check(in_.empty(), Code::kTransport, "{}: {} bytes too many; {}", what_, in_.size(), kRemedy);
  }

 private:
  static constexpr const char* kRemedy = "do all hosts have the same version of ringcoll?";

  std::string_view take(size_t size) {
    check(size <= in_.size(), Code::kTransport, "{}: cut short; {}", what_, kRemedy);
    std::string_view taken = in_.substr(0, size);
    in_.remove_prefix(size);
    return taken;
  }

  std::string_view in_;
  const char* what_;
};

}  // namespace ringcoll
