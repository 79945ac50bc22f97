// horovod://host:port/scope: the rendezvous server of horovodrun
// (horovod/runner/http/http_server.py). It keeps values by scope and key, with PUT, GET and DELETE
// of /scope/key, and answers 404 for a key that is not set. PUT overwrites; there is no request
// that sets a key only if it is not set.
#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/nonce.h"
#include "store/http_client.h"
#include "store/store.h"

namespace ringcoll {
namespace {

// The server runs before the workers start. So a server that refuses connections will not come up,
// and a program that is not HTTP will not change. A request is retried for this long in these
// cases.
constexpr double kDoubtSeconds = 1;
// An overloaded server answers late, and never answers connections that it has dropped. So a
// request without an answer is repeated, each time with twice the patience. Every request may
// safely arrive twice. The longest patience is below the 25 s after which a socket with
// unacknowledged data breaks (tune()), which would be another kind of error.
constexpr Duration kFirstHttpPatience = std::chrono::milliseconds(600);
constexpr Duration kMostHttpPatience = std::chrono::seconds(20);
// Horovod's server has a backlog of five connections, and the kernel drops all others meanwhile.
// TCP would retry after 1, 3 and 7 s, and ranks that start together would take as long. So
// connecting gets only this fraction of the patience.
constexpr int kPartToConnect = 6;
// The server starts a Python thread for each request, which takes about a millisecond.
constexpr Duration kRequest = std::chrono::milliseconds(1);
// An overloaded server resets connections or answers with 5xx. The pause before the next request is
// random, up to these values at first and later.
constexpr Duration kFirstRetryPause = std::chrono::milliseconds(100);
constexpr Duration kMostRetryPause = std::chrono::seconds(2);
constexpr int kFirstServerError = 500;
constexpr const char* kDefaultScope = "ringcoll";

class HttpStore : public Store {
 public:
  HttpStore(const std::string& rest, Deadline deadline) : name_("horovod://" + rest) {
    size_t slash = std::min(rest.find('/'), rest.size());
    authority_ = rest.substr(0, slash);
    HostPort where = split_host_port(authority_);
    check(where.port != 0, Code::kInvalidArgument, "{}: a port is needed", name_);
    std::string scope = slash < rest.size() ? rest.substr(slash + 1) : "";
    scope_ = quote_key(scope.empty() ? kDefaultScope : scope);
    servers_ = resolve(where);
    request("GET", "probe", "", deadline);
  }

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    auto found = try_get(key, deadline);
    check(!found || *found == value, Code::kInvalidArgument,
          "{}: \"{}\" is set already, to another value", name_, key);
    check(request("PUT", key, value, deadline).status == 200, Code::kTransport,
          "{}: the server did not take \"{}\"", name_, key);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    HttpResponse response = request("GET", key, "", deadline);
    if (response.status == 404) return {};
    return std::move(response.body);
  }
  void remove(const std::string& key, Deadline deadline) override {
    request("DELETE", key, "", deadline);
  }
  bool outlives_jobs() const override { return true; }
  const std::string& name() const override { return name_; }

 protected:
  Pace pace() const override {
    return {std::chrono::milliseconds(5), std::chrono::milliseconds(100), kRequest, 2 * kRequest};
  }

 private:
  /// When the next request is made, and how long it waits for its answer.
  struct Retries {
    Duration patience = kFirstHttpPatience;
    Duration pause = kFirstRetryPause;
    std::optional<Deadline> doubt;  // set while the server seems not to be there
    std::optional<Error> cause;     // the last failure, unless that only says that time is up
    int made = 0;
  };

  // Retries until the deadline. A server that refuses connections or is not HTTP ends this sooner,
  // after kDoubtSeconds. A status that no rendezvous server returns ends it at once.
  HttpResponse request(std::string_view method, const std::string& key, const std::string& body,
                       Deadline deadline) {
    std::string path = fmt::format("/{}/{}", scope_, quote_key(key));
    auto start = Clock::now();
    for (Retries retries;;) {
      try {
        return try_request(method, path, body, std::min(deadline.left(), retries.patience),
                           retries.made++);
      } catch (const Error& error) {
        if (error.code() == Code::kInvalidArgument) throw;
        bool is_there =
            !dynamic_cast<const HttpRefused*>(&error) && !dynamic_cast<const NotHttp*>(&error);
        if (is_there)
          retries.doubt.reset();
        else if (!retries.doubt)
          retries.doubt = Deadline(seconds(kDoubtSeconds));
        if (!retries.cause || error.code() != Code::kTimeout || !deadline.passed())
          retries.cause = error;
        bool ends = deadline.passed() || (retries.doubt && retries.doubt->passed());
        check(!ends, retries.cause->code(),
              "{}: {}; tried {} times in {:.1f} s; is this the rendezvous server of a running "
              "horovodrun (HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT)?",
              name_, retries.cause->what(), retries.made, to_seconds(Clock::now() - start));
        pause_after(error, &retries, deadline);
      }
    }
  }

  HttpResponse try_request(std::string_view method, const std::string& path,
                           const std::string& body, Duration patience, int number) {
    const Address& server = servers_[static_cast<size_t>(number) % servers_.size()];
    HttpDeadlines deadlines{Deadline(patience / kPartToConnect), Deadline(patience)};
    HttpResponse response = http_request(server, method, authority_, path, body, deadlines);
    std::string answer =
        fmt::format("{} {}: the server answers with status {}", method, path, response.status);
    check(response.status < kFirstServerError, Code::kTransport, "{}", answer);
    if (response.status != 200 && response.status != 404)
      throw Error(Code::kInvalidArgument,
                  fmt::format("{}: {}, which no rendezvous server of horovodrun does "
                              "(HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT)",
                              name_, answer));
    return response;
  }

  void pause_after(const Error& error, Retries* retries, Deadline deadline) {
    look();
    Duration pause = any_up_to(retries->pause);
    if (error.code() == Code::kTimeout) {
      pause = any_up_to(retries->patience / kPartToConnect);
      retries->patience = std::min(2 * retries->patience, kMostHttpPatience);
    } else {
      retries->pause = std::min(2 * retries->pause, kMostRetryPause);
    }
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
  }

  // Random, so that ranks that were dropped together do not return together.
  Duration any_up_to(Duration most) {
    return Duration(std::uniform_int_distribution<Duration::rep>(0, most.count())(random_));
  }

  std::string name_;
  std::string authority_;
  std::string scope_;
  std::vector<Address> servers_;
  std::minstd_rand random_{static_cast<uint32_t>(random_nonce())};
};

}  // namespace

std::unique_ptr<Store> open_http_store(const std::string& rest, Deadline deadline) {
  return std::make_unique<HttpStore>(rest, deadline);
}

}  // namespace ringcoll
