#include "verbs/device_list.h"

#include "verbs/failure.h"
#include "verbs/table.h"

namespace ringcoll::verbs {

DeviceList::DeviceList(const Table& table) : table_(table) {
  int count = 0;
  list_ =
      check_object(table.get_device_list(&count), "ibv_get_device_list", {.device = "all devices"});
  for (int i = 0; i < count; i++) names_.emplace_back(table.get_device_name(list_[i]));
}

DeviceList::~DeviceList() {
  if (list_) table_.free_device_list(list_);
}

std::span<ibv_device* const> DeviceList::devices() const { return {list_, names_.size()}; }

ibv_device* DeviceList::find(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); i++)
    if (names_[i] == name) return list_[i];
  return nullptr;
}

}  // namespace ringcoll::verbs
