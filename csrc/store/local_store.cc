// local://name: a map in this process. It exists as long as a store of that name is open.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/error.h"
#include "store/store.h"

namespace ringcoll {
namespace {

struct Shared {
  int users = 0;
  std::map<std::string, std::string> values;
};

// The one table of open stores, by name.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Shared> shared;
};
Table& table() {
  static Table table;
  return table;
}

class LocalStore : public Store {
 public:
  explicit LocalStore(std::string name) : name_("local://" + name), key_(std::move(name)) {
    std::lock_guard lock(table().mutex);
    shared_ = &table().shared[key_];
    shared_->users++;
  }
  ~LocalStore() override {
    std::lock_guard lock(table().mutex);
    if (--shared_->users == 0) table().shared.erase(key_);
  }

  void set(const std::string& key, const std::string& value, Deadline) override {
    {
      std::lock_guard lock(table().mutex);
      auto [entry, added] = shared_->values.try_emplace(key, value);
      check(added || entry->second == value, Code::kInvalidArgument,
            "{}: \"{}\" is set already, to another value", name_, key);
    }
    table().changed.notify_all();
  }
  std::optional<std::string> try_get(const std::string& key, Deadline) override {
    return wait(key, Deadline(Duration::zero()));
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    std::unique_lock lock(table().mutex);
    auto found = shared_->values.end();
    table().changed.wait_for(lock, deadline.left(), [&] {
      found = shared_->values.find(key);
      return found != shared_->values.end();
    });
    if (found == shared_->values.end()) return {};
    return found->second;
  }
  void remove(const std::string& key, Deadline) override {
    std::lock_guard lock(table().mutex);
    shared_->values.erase(key);
  }
  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  const std::string key_;
  Shared* shared_;
};

}  // namespace

std::unique_ptr<Store> open_local_store(const std::string& rest) {
  return std::make_unique<LocalStore>(rest);
}

}  // namespace ringcoll
