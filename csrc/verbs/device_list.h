// The device list of libibverbs, freed by its owner. Private to verbs/.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ibv_device;

namespace ringcoll::verbs {

struct Table;

class DeviceList {
 public:
  /// Throws Error(kTransport) that says what the kernel lacks. The list may be empty.
  explicit DeviceList(const Table& table);
  ~DeviceList();
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  std::span<ibv_device* const> devices() const;
  const std::vector<std::string>& names() const { return names_; }
  /// The device of this name, or null.
  ibv_device* find(std::string_view name) const;

 private:
  const Table& table_;
  ibv_device** list_ = nullptr;
  std::vector<std::string> names_;
};

}  // namespace ringcoll::verbs
