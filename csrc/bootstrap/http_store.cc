// horovod://host:port/scope: the rendezvous server of horovodrun, which keeps values by scope and
// key: PUT and GET and DELETE of /scope/key, 404 for what is not set
// (horovod/runner/http/http_server.py). It overwrites what is set already, and knows no request
// that would not.
#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/nonce.h"
#include "bootstrap/http_client.h"
#include "bootstrap/store.h"

namespace ringcoll {
namespace {

// The server stands before the workers start, so one that is not there will not come, and one that
// is another program will not change. So long is that doubted.
constexpr double kDoubtSeconds = 1;
// A server that has more connections than it can serve answers late, or never those that it has
// dropped: a request that is not answered in so long is made again, with twice the patience. None
// does harm when it comes twice. A socket whose data nobody acknowledges breaks after 30 s
// (tune()), which would be an error of another kind.
constexpr Duration kFirstHttpPatience = std::chrono::milliseconds(600);
constexpr Duration kMostHttpPatience = std::chrono::seconds(20);
// Horovod's server lets five connections wait until it accepts them, and the kernel drops all
// others that come meanwhile: it would ask again after 1, 3 and 7 s, so that ranks which start
// together would take that long. To connect has this part of the patience.
constexpr int kPartToConnect = 6;
// The server is written in Python, and starts a thread for each request: about a millisecond.
constexpr Duration kRequest = std::chrono::milliseconds(1);
// A server that is overloaded resets connections and answers with 5xx. Pauses between two requests
// of one that does so are of chance, up to these at first and later.
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
  /// When the next request is made, and how long its answer is waited for.
  struct Retries {
    Duration patience = kFirstHttpPatience;
    Duration pause = kFirstRetryPause;
    std::optional<Deadline> doubt;  // since it seems not to be there
    std::optional<Error> cause;     // of the last failure, but that there was no time left
    int made = 0;
  };

  // Whatever the server does, but for refusing or not being one, it is asked until the deadline.
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

  // So that those which were dropped together do not come back together.
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
