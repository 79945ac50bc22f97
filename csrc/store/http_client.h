// The part of HTTP/1.1 that Horovod's rendezvous server needs: one request for each connection.
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

/// Deadlines of a request: for connecting, and for the whole.
struct HttpDeadlines {
  Deadline connect;
  Deadline answer;
};

/// The connection was refused: nobody listens at the address.
struct HttpRefused : Error {
  using Error::Error;
};
/// The answer is not HTTP, or of a kind that is not understood here.
struct NotHttp : Error {
  using Error::Error;
};

/// Sends a request with a body and reads the whole answer. `host` is the value of the Host header.
/// Throws Error(kTimeout), or Error(kTransport) naming the address and the cause. HttpRefused and
/// NotHttp are the two causes that callers can tell apart.
HttpResponse http_request(const Address& server, std::string_view method, std::string_view host,
                          std::string_view path, std::string_view body, HttpDeadlines deadlines);

/// The head of a response.
struct HttpHead {
  int status = 0;
  int64_t content_length = -1;  // -1: the body extends to the end of the stream
};
/// Parses the lines of a head, without the empty line that ends it. Throws NotHttp unless they are
/// "HTTP/1.x nnn" and lines "name: value". Also throws it for an invalid or too large
/// Content-Length, and for any Transfer-Encoding (chunked).
HttpHead parse_http_head(std::string_view head);

}  // namespace ringcoll
