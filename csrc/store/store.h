// A key-value store that the ranks of a job share until they are connected.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/types.h"
#include "net/address.h"

namespace ringcoll {

/// A request gets at least this much time, even if the caller waits less for the key.
constexpr double kRequestSeconds = 30;

/// Values are bytes. One thread at a time. Failures throw Error(kTransport) or Error(kTimeout),
/// which names the store, the cause and the remedy.
class Store {
 public:
  virtual ~Store() = default;
  /// Sets a key. A key is set once: throws Error(kInvalidArgument) if it has another value already.
  /// With horovod:// alone, the second of two that set a key at the same moment may overwrite the
  /// first.
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// Returns the value if it is set now. `deadline` bounds the request.
  virtual std::optional<std::string> try_get(const std::string& key, Deadline deadline) = 0;
  /// Removes a key, if it is set.
  virtual void remove(const std::string& key, Deadline deadline) = 0;
  /// Whether the next job can find values of a job that was killed.
  virtual bool outlives_jobs() const { return false; }
  /// The URL.
  virtual const std::string& name() const = 0;

  /// Why this process cannot start, if opening the store showed that. The store still works, so
  /// that the others can be told.
  virtual std::optional<Error> unable() const { return {}; }

  /// A possible cause if ranks do not come, such as refused connections, or "".
  virtual std::string remark() const { return ""; }

  /// How long to wait for one key before making other requests, which may be expensive.
  Duration turn() const { return std::max(kLook, kPausesOfATurn * longest_pause()); }
  /// Tells how many ranks wait at the same time, each with its own Store: the more, the less often
  /// each of them polls.
  void set_waiters(Rank count) { waiters_ = count; }
  /// A wait calls `look` a few times a second. What `look` throws ends the wait.
  void while_waiting(std::function<void()> look) { look_ = std::move(look); }

  /// Returns the value as soon as it is set, or nothing at the deadline. A store that is not
  /// notified polls, less and less often.
  virtual std::optional<std::string> wait(const std::string& key, Deadline deadline);
  /// The same, but throws Error(kTimeout) at the deadline, naming the store and the key.
  std::string get(const std::string& key, Deadline deadline);

 protected:
  /// Pauses between two polls: at first, and when nothing has come for a while. The `_of_each`
  /// values are multiplied by the number of waiting ranks. They keep the store free for rank 0, on
  /// which all others wait.
  struct Pace {
    Duration first = std::chrono::milliseconds(1);
    Duration longest = std::chrono::milliseconds(20);
    Duration first_of_each = std::chrono::nanoseconds(12500);
    Duration longest_of_each = std::chrono::microseconds(250);
  };
  virtual Pace pace() const { return {}; }
  Duration longest_pause() const {
    return std::max(pace().longest, waiters_ * pace().longest_of_each);
  }

  void look() const {
    if (look_) look_();
  }

  static constexpr Duration kLook = std::chrono::milliseconds(250);
  static constexpr int kPausesOfATurn = 4;

 private:
  void sleep(Duration time) const;

  Rank waiters_ = 1;

  // A wait for the same key continues at the pause that the previous wait had reached.
  std::string awaited_;
  Duration pause_{};
  std::function<void()> look_;
};

inline constexpr size_t kMaxKeyBytes = 200;
inline constexpr size_t kMaxValueBytes = size_t{64} << 20;

/// A key as part of a path: letters, digits, ".", "-" and "_" stay, others become %XX. Different
/// keys stay different.
std::string quote_key(std::string_view key);

/// `url` is one of
/// - tcp://host:port: rank 0 of the job serves it; the others connect and wait until it listens
/// - file:///directory: a directory that all ranks see; ringcoll's files in it are removed at the
///   end
/// - horovod://host:port: the rendezvous server that horovodrun starts (HTTP PUT and GET); the path
///   is the scope
/// - local://name: threads of one process
///
/// `secret` protects tcp:// (challenge and response). Throws Error(kInvalidArgument) for any other
/// URL, naming these forms.
std::unique_ptr<Store> open_store(const std::string& url, const std::string& secret, Rank rank,
                                  Rank size, Deadline deadline);

/// The stores of open_store(); `rest` is the URL after "://".
std::unique_ptr<Store> open_tcp_store(const std::string& rest, const std::string& secret, Rank rank,
                                      Rank size, Deadline deadline);
/// Rank 0's end of tcp://. It listens on all of `addresses` that belong to this host, since clients
/// try them one after another. If another job held one of them, the two jobs would meet. Throws
/// Error(kTransport) if one is taken.
std::unique_ptr<Store> serve_tcp_store(const std::string& name,
                                       const std::vector<Address>& addresses,
                                       const std::string& secret, Rank size);
std::unique_ptr<Store> open_file_store(const std::string& rest, Rank rank, Deadline deadline);
std::unique_ptr<Store> open_http_store(const std::string& rest, Deadline deadline);
std::unique_ptr<Store> open_local_store(const std::string& rest);

}  // namespace ringcoll
