#include "base/file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace ringcoll {

std::optional<std::string> read_small_file(const std::string& path, size_t limit,
                                           std::string* failure) {
  auto no = [&](std::string why) -> std::optional<std::string> {
    *failure = std::move(why);
    return {};
  };
  std::error_code error;
  auto status = std::filesystem::status(path, error);
  if (error) return no(error.message());
  if (!std::filesystem::is_regular_file(status)) return no("it is no regular file");
  auto bytes = std::filesystem::file_size(path, error);
  if (error) return no(error.message());
  if (bytes > limit) return no(fmt::format("it has {} bytes; at most {} are read", bytes, limit));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file.is_open() || file.bad()) return no(errno_text("open", errno));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace ringcoll
