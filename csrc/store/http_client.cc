#include "store/http_client.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "net/socket.h"
#include "store/store.h"

namespace ringcoll {
namespace {

constexpr size_t kMaxHeadBytes = 64 * 1024;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string_view trim(std::string_view text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw NotHttp(Code::kTransport, fmt::format(format, std::forward<Args>(args)...));
}

int64_t parse_number(std::string_view text, int64_t most) {
  int64_t value = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most,
          "\"{}\" in the answer is not a number from 0 to {}", text, most);
  return value;
}

// Reads from the socket into `text` until `enough()`; false at the end of the stream.
template <typename Enough>
bool fill(int fd, std::string* text, Deadline deadline, const std::string& link, Enough&& enough) {
  std::array<char, 16384> buffer;
  while (!enough()) {
    size_t got = recv_some(fd, buffer.data(), buffer.size(), deadline, link);
    if (got == 0) return false;
    text->append(buffer.data(), got);
  }
  return true;
}

HttpResponse read_response(int fd, Deadline deadline, const std::string& link) {
  std::string text;
  size_t end_of_head = std::string::npos;
  bool complete = fill(fd, &text, deadline, link, [&] {
    end_of_head = text.find(kEndOfHead);
    return end_of_head != std::string::npos || text.size() > kMaxHeadBytes;
  });
  check(complete || !text.empty(), Code::kTransport, "{}: closed without an answer", link);
  require(complete && end_of_head <= kMaxHeadBytes,
          "{}: the answer is not HTTP, or its head is longer than {} bytes", link, kMaxHeadBytes);
  HttpHead head = parse_http_head(std::string_view(text).substr(0, end_of_head));
  std::string body = text.substr(end_of_head + kEndOfHead.size());
  bool to_the_end = head.content_length < 0;
  size_t expected = to_the_end ? kMaxValueBytes + 1 : static_cast<size_t>(head.content_length);
  complete = fill(fd, &body, deadline, link, [&] { return body.size() >= expected; });
  check(complete != to_the_end, Code::kTransport, "{}: the answer {}", link,
        to_the_end ? "is too long" : "is cut short");
  if (!to_the_end) body.resize(expected);
  return {head.status, std::move(body)};
}

}  // namespace

HttpHead parse_http_head(std::string_view text) {
  HttpHead head;
  size_t end = std::min(text.find("\r\n"), text.size());
  std::string_view status = text.substr(0, end);
  bool known = status.size() >= 12 && status.starts_with("HTTP/1.") && status[8] == ' ';
  require(known, "the answer is not HTTP/1");
  head.status = static_cast<int>(parse_number(status.substr(9, 3), 999));
  while (end < text.size()) {
    text.remove_prefix(end + 2);
    end = std::min(text.find("\r\n"), text.size());
    std::string_view line = text.substr(0, end);
    size_t colon = line.find(':');
    require(colon != std::string_view::npos, "a header line without a colon");
    std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
    if (same_name(name, "content-length"))
      head.content_length = parse_number(value, static_cast<int64_t>(kMaxValueBytes));
    require(!same_name(name, "transfer-encoding"),
            "an answer with Transfer-Encoding \"{}\" is not understood", value);
  }
  return head;
}

HttpResponse http_request(const Address& server, std::string_view method, std::string_view host,
                          std::string_view path, std::string_view body, HttpDeadlines deadlines) {
  std::string link = fmt::format("{} http://{}{}", method, server.text(), path);
  int error = 0;
  Fd fd = try_connect(server, deadlines.connect, &error);
  check(error != ETIMEDOUT, Code::kTimeout, "{}: connect: no answer before the deadline", link);
  std::string why = fmt::format("{}: {}", link, errno_text("connect", error));
  if (error == ECONNREFUSED) throw HttpRefused(Code::kTransport, why);
  check(static_cast<bool>(fd), Code::kTransport, "{}", why);
  std::string request =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                  method, path, host, body.size(), body);
  send_all(fd.get(), request.data(), request.size(), deadlines.answer, link);
  return read_response(fd.get(), deadlines.answer, link);
}

}  // namespace ringcoll
