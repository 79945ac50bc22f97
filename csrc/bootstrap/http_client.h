// The few lines of HTTP/1.1 that Horovod's rendezvous server needs: one request for each
// connection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "net/address.h"

namespace ringcoll {

struct HttpResponse {
  int status = 0;
  std::string body;
};

/// How long a request may take: until it is connected, and in all.
struct HttpDeadlines {
  Deadline connect;
  Deadline answer;
};

/// Nobody listens there.
struct HttpRefused : Error {
  using Error::Error;
};
/// What came is not of a server that is understood here.
struct NotHttp : Error {
  using Error::Error;
};

/// Sends a request with a body and reads the whole answer; `host` is for its Host line. Throws
/// Error(kTimeout) or Error(kTransport) naming the address and the cause, two of which are told
/// apart: HttpRefused and NotHttp.
HttpResponse http_request(const Address& server, std::string_view method, std::string_view host,
                          std::string_view path, std::string_view body, HttpDeadlines deadlines);

/// The head of a response: its lines without the empty one.
struct HttpHead {
  int status = 0;
  int64_t content_length = -1;  // -1: until the end of the stream
};
/// Throws NotHttp if it is not "HTTP/1.x nnn" and lines "name: value", or of a kind that
/// is not understood here (chunked).
HttpHead parse_http_head(std::string_view head);

}  // namespace ringcoll
