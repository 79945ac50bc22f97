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

/// A request that has begun is given this much time, however little the caller would wait for the
/// key.
constexpr double kRequestSeconds = 30;

/// Values are bytes. One thread at a time. What fails throws Error(kTransport) or Error(kTimeout)
/// naming the store, the cause and the remedy.
class Store {
 public:
  virtual ~Store() = default;
  /// Sets a key; a key is set once: Error(kInvalidArgument) if it has another value already. Only
  /// where two set it at the same moment, horovod:// lets the second overwrite the first.
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// The value if it is set now. `deadline` bounds the request.
  virtual std::optional<std::string> try_get(const std::string& key, Deadline deadline) = 0;
  /// Removes a key, if it is set.
  virtual void remove(const std::string& key, Deadline deadline) = 0;
  /// Whether what a job has left when it was killed can be found in it by the next.
  virtual bool outlives_jobs() const { return false; }
  /// The URL.
  virtual const std::string& name() const = 0;

  /// Why this process cannot start, if that was found when the store was opened: the store serves
  /// to tell the others.
  virtual std::optional<Error> unable() const { return {}; }

  /// What may be the cause if ranks do not come, or "": those that were turned away, say.
  virtual std::string remark() const { return ""; }

  /// How long who waits for one key had better do nothing else: requests may be dear.
  Duration turn() const { return std::max(kLook, kPausesOfATurn * longest_pause()); }
  /// So many ranks wait in it at a time, each in a store of its own: they poll the less often.
  void set_waiters(Rank count) { waiters_ = count; }
  /// `look` is called a few times a second by a wait; what it throws ends the wait.
  void while_waiting(std::function<void()> look) { look_ = std::move(look); }

  /// The value as soon as it is set; nothing at the deadline. A store that cannot tell when that is
  /// polls, less and less often.
  virtual std::optional<std::string> wait(const std::string& key, Deadline deadline);
  /// The same, but Error(kTimeout) naming the store and the key at the deadline.
  std::string get(const std::string& key, Deadline deadline);

 protected:
  /// Between two polls: at first, and when nothing has come for a while. At least so much for each
  /// rank that waits, so that rank 0, for which all wait, finds the store free.
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

  // Who waits for a key in slices goes on at the pace that it had come to.
  std::string awaited_;
  Duration pause_{};
  std::function<void()> look_;
};

inline constexpr size_t kMaxKeyBytes = 200;
inline constexpr size_t kMaxValueBytes = size_t{64} << 20;

/// A key as part of a path: letters, digits, ".", "-", "_", the rest as %XX. Different keys stay
/// different.
std::string quote_key(std::string_view key);

/// `url` is one of
/// - tcp://host:port: rank 0 of the job serves it, the others connect (they wait for it to come up)
/// - file:///directory: all ranks see it; the ringcoll files in it are removed at the end
/// - horovod://host:port: the rendezvous server that horovodrun starts (HTTP PUT and GET); scope
///   from the path
/// - local://name: threads of one process
///
/// `secret` guards tcp:// (challenge and response). Throws Error(kInvalidArgument) for anything
/// else, naming the forms.
std::unique_ptr<Store> open_store(const std::string& url, const std::string& secret, Rank rank,
                                  Rank size, Deadline deadline);

/// What open_store() chooses from; `rest` is the URL after "://".
std::unique_ptr<Store> open_tcp_store(const std::string& rest, const std::string& secret, Rank rank,
                                      Rank size, Deadline deadline);
/// Rank 0's end of it. Serves at all of `addresses` that are this host's, for the others try them
/// one after another: who has only one of them would let two jobs meet. Throws Error(kTransport) if
/// one is taken.
std::unique_ptr<Store> serve_tcp_store(const std::string& name,
                                       const std::vector<Address>& addresses,
                                       const std::string& secret, Rank size);
std::unique_ptr<Store> open_file_store(const std::string& rest, Rank rank, Deadline deadline);
std::unique_ptr<Store> open_http_store(const std::string& rest, Deadline deadline);
std::unique_ptr<Store> open_local_store(const std::string& rest);

}  // namespace ringcoll
