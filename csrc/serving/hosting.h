// The shards that a server has, and what requests do to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "serving/request.h"
#include "serving/wire.h"
#include "table/shard.h"
#include "table/spec.h"

namespace ringcoll::serving {

/// Another server that has the shard, and is sent all that changes it.
struct Backup {
  int64_t server = 0;
  /// Whether the shard as a whole was sent on the line that there is now.
  bool is_installed = false;
};

enum class Role : uint8_t {
  kIdle,     // it answers nobody: not yet, or another server leads
  kLeads,    // it answers clients
  kFollows,  // it does what the server that leads sends
};

struct Hosted {
  explicit Hosted(std::unique_ptr<Shard> made) : shard(std::move(made)) {}

  std::unique_ptr<Shard> shard;
  Role role = Role::kIdle;
  int64_t epoch = 0;      // of its role
  int64_t installed = 0;  // the epoch at which it was sent here as a whole
  std::vector<Backup> backups;
  /// Whether clients are answered. Only a backup can have replaced the server.
  bool is_led(bool may_be_replaced) const {
    return role == Role::kLeads && (!may_be_replaced || backups.empty());
  }
  std::optional<Deadline> grace;   // of the current clock, once it has its quorum
  uint64_t pushes = 0, pulls = 0;  // requests
  uint64_t pushed_bytes = 0, pulled_bytes = 0;
};

struct HostedTable {
  std::string uid;
  uint64_t key = 0;
  TableSpec spec;
  int64_t shards = 0;               // of the whole table
  std::map<uint32_t, Hosted> here;  // by their numbers
};

/// Rows of a shard as arrays (table/columns.h). Borrowed.
struct SavedShard {
  Rule rule;
  size_t rows = 0;
  std::span<const std::byte> columns;
};

/// One thread at a time.
class Hosting {
 public:
  /// Makes a shard, with these workers at clock 0. Nothing happens if it is there. Throws
  /// Error(kInvalidArgument, kRefused).
  void host(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
            std::span<const int64_t> workers);
  /// The same with rows that were saved (table/columns.h), in place of new ones.
  void host_saved(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
                  std::span<const int64_t> workers, const SavedShard& saved);
  void unhost(const std::string& uid, uint32_t shard);

  /// Null if it is not here.
  HostedTable* find(uint64_t key);
  Hosted* find(uint64_t key, uint32_t shard);
  /// Throws Error(kInvalidArgument) if it is not here.
  Hosted& get(const std::string& uid, uint32_t shard);
  HostedTable& get(const std::string& uid);
  std::map<uint64_t, HostedTable>& tables() { return tables_; }

  /// Whether all pieces of a client's request are of shards that are led here. A server that may
  /// have been replaced leads only those without backups.
  bool leads(const Incoming& request, bool may_be_replaced);
  /// How the rule merges pushes, if the request was merged otherwise, else kUnmerged.
  /// Precondition: leads().
  uint8_t other_merging(const Incoming& request);
  /// Whether a worker's pull has to wait for a clock. Precondition: leads().
  bool waits(const Incoming& request);
  /// The bytes of the rows that a client's request pulls. Precondition: leads(). Throws
  /// Error(kInvalidArgument).
  size_t bytes_of_rows(const Incoming& request);
  struct Changed {
    int64_t clock = 0;           // the latest of the shards
    std::optional<Error> error;  // the first one
    std::vector<uint32_t> done;  // shards that have done it; others have not changed
    /// Shards whose custom rule has thrown. It may keep something else now, so backups have to do
    /// the same.
    std::vector<uint32_t> failed;
  };
  /// Does what the request says to each of its shards but these, except pulls.
  Changed change(const Incoming& request, std::span<const uint32_t> without = {});
  /// Copies the rows of a pull, one after another. Throws Error(kInvalidArgument).
  void copy_rows(const Incoming& request, std::span<std::byte> out);
  /// Where the rows of the pieces lie, if the table is dense: as few stretches as possible, in
  /// order. Empty if some rows are only made when they are copied.
  std::vector<std::span<const std::byte>> places_of_rows(const Incoming& request);
  /// Makes the shard what another server has sent.
  void install(const Incoming& request);

 private:
  /// Whether this shard is to be made. Throws Error(kInvalidArgument).
  bool lacks(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards);
  void put(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
           std::unique_ptr<Shard> made);
  void change_shard(const HostedTable& table, Hosted& hosted, const Incoming& request,
                    std::span<const int64_t> ids, std::span<const std::byte> values);
  void change_rows(const HostedTable& table, Hosted& hosted, const RequestHead& head,
                   const PushedRows& rows);
  /// The ids of a piece: of a dense table all rows of the shard.
  std::span<const int64_t> ids_of(const HostedTable& table, const Piece& piece,
                                  std::span<const int64_t>& left);

  std::map<uint64_t, HostedTable> tables_;
  std::vector<int64_t> dense_ids_;
};

}  // namespace ringcoll::serving
