// Recognizes the format of a topology file, and refuses a file that is not text.
#include <algorithm>
#include <optional>

#include "topology/switch_tree.h"

namespace ringcoll {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr const char* kRemedy = "write it in UTF-8 (iconv -t UTF-8)";

int line_at(std::string_view text, size_t at) {
  return static_cast<int>(std::ranges::count(text.substr(0, at), '\n')) + 1;
}

// The number of bytes of the UTF-8 character at the start of `text`; 0 if there is none.
size_t character_bytes(std::string_view text) {
  auto lead = static_cast<unsigned char>(text[0]);
  size_t bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead > 0xf4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; i++)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  return bytes;
}

void check_encoding(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    throw at_line(1, "it is UTF-16, as its byte order mark says: {}", kRemedy);
  if (size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw at_line(line_at(text, zero), "it holds bytes of zero, so it is UTF-16 or no text: {}",
                  kRemedy);
  for (size_t at = 0; at < text.size();) {
    size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0)
      throw at_line(line_at(text, at), "the byte {:#04x} is no UTF-8 (Latin-1?): {}",
                    static_cast<unsigned char>(text[at]), kRemedy);
    at += bytes;
  }
}

// The text from the first line on that is neither blank nor a comment; nothing if there is none.
std::optional<std::string_view> first_line(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string_view::npos && line[begin] != '#') return line.substr(begin);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

}  // namespace

Placements parse_topology(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  check_encoding(text);
  auto line = first_line(text);
  if (!line) throw at_line(1, "the file is empty");
  size_t sign = line->find_first_of("=:{[");
  bool conf = sign != std::string_view::npos && (*line)[sign] == '=';
  Placements placements = conf ? parse_slurm_conf(text) : parse_yaml(text);
  if (placements.empty()) throw at_line(1, "the file names no host");
  return placements;
}

}  // namespace ringcoll
