#include "verbs/fake/fake_testing.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "verbs/fake/model_testing.h"

namespace ringcoll::verbs {
namespace {

std::atomic<FakeModel*> current{nullptr};

FakeDeviceState& device_of(ibv_context* context) {
  return *static_cast<FakeContext*>(context)->owner;
}

ibv_gid gid_from(const std::string& address) {
  ibv_gid gid{};
  if (address.empty()) return gid;
  bool ipv4 = address.find(':') == std::string::npos;
  std::string text = ipv4 ? "::ffff:" + address : address;
  invariant(::inet_pton(AF_INET6, text.c_str(), gid.raw) == 1, "{} is no address", address);
  return gid;
}

uint32_t verbs_type(GidType type) {
  if (type == GidType::kRoceV2) return IBV_GID_TYPE_ROCE_V2;
  return type == GidType::kRoceV1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB;
}

ibv_port_state verbs_state(PortState state) {
  constexpr ibv_port_state kStates[] = {IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED,
                                        IBV_PORT_ACTIVE};
  return kStates[static_cast<size_t>(state)];
}

uint8_t verbs_layer(LinkLayer layer) {
  if (layer == LinkLayer::kEthernet) return IBV_LINK_LAYER_ETHERNET;
  return layer == LinkLayer::kInfiniBand ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_UNSPECIFIED;
}

ibv_mtu verbs_mtu(uint32_t bytes) {
  int code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (128u << code) < bytes) code++;
  return static_cast<ibv_mtu>(code);
}

ibv_device** get_device_list(int* count) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kGetDeviceList))
    return refuse<ibv_device*>(error);
  auto** list = new ibv_device*[model.devices.size() + 1]();
  for (size_t i = 0; i < model.devices.size(); i++) list[i] = model.devices[i].get();
  if (count) *count = static_cast<int>(model.devices.size());
  return list;
}

void free_device_list(ibv_device** list) { delete[] list; }

const char* get_device_name(ibv_device* device) { return device->name; }

ibv_context* open_device(ibv_device* device) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kOpenDevice)) return refuse<ibv_context>(error);
  auto* context = new FakeContext{};
  context->owner = static_cast<FakeDeviceState*>(device);
  context->device = device;
  context->async = make_counter();
  context->async_fd = context->async.get();
  context->cmd_fd = -1;
  context->num_comp_vectors = 1;
  context->ops.poll_cq = fake_poll;
  context->ops.req_notify_cq = fake_arm;
  context->ops.post_send = fake_post_send;
  context->ops.post_recv = fake_post_recv;
  model.contexts.insert(context);
  model.objects++;
  return context;
}

int close_device(ibv_context* opened) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* context = static_cast<FakeContext*>(opened);
  if (context->users)
    model.misuses.push_back(
        fmt::format("ibv_close_device: {} objects of the device are left", context->users));
  model.contexts.erase(context);
  model.objects--;
  delete context;
  return 0;
}

int query_device(ibv_context* context, ibv_device_attr* attributes) {
  const FakeDevice& device = device_of(context).device;
  *attributes = {};
  std::strcpy(attributes->fw_ver, "fake");
  attributes->max_mr_size = UINT64_MAX;
  attributes->max_qp = 1 << 20;
  attributes->max_qp_wr = device.max_work_requests;
  attributes->max_sge = device.max_slices;
  attributes->max_cqe = device.max_completions;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = kFakeReadsInFlight;
  attributes->max_cq = attributes->max_mr = 1 << 20;
  attributes->phys_port_cnt = static_cast<uint8_t>(device.ports.size());
  return 0;
}

int query_port_of_fake(ibv_context* context, uint8_t number, _compat_ibv_port_attr* compat) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  const FakePortState* state = device_of(context).find_port(number);
  if (!state) return EINVAL;
  const FakePort& port = state->port;
  auto* a = reinterpret_cast<ibv_port_attr*>(compat);
  a->state = verbs_state(port.state);
  a->max_mtu = IBV_MTU_4096;
  a->active_mtu = verbs_mtu(port.mtu_bytes);
  a->gid_tbl_len = static_cast<int>(port.gids.size());
  a->max_msg_sz = port.max_message_bytes;
  a->lid = port.lid;
  a->active_width = 2;   // 4 lanes
  a->active_speed = 32;  // of 25 Gb/s
  a->phys_state = port.state == PortState::kDown ? 2 : 5;
  a->link_layer = verbs_layer(port.link_layer);
  return 0;
}

int query_gid(ibv_context* context, uint8_t number, int index, ibv_gid* gid) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  const FakePortState* state = device_of(context).find_port(number);
  if (!state || index < 0 || std::cmp_greater_equal(index, state->port.gids.size())) {
    errno = EINVAL;
    return -1;
  }
  *gid = gid_from(state->port.gids[static_cast<size_t>(index)].address);
  return 0;
}

ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t room, uint32_t,
                        size_t) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  size_t count = 0;
  const auto& ports = device_of(context).ports;
  for (size_t port = 0; port < ports.size(); port++) {
    const auto& gids = ports[port].port.gids;
    for (size_t index = 0; index < gids.size(); index++) {
      if (gids[index].address.empty()) continue;
      if (count == room) return -EINVAL;
      entries[count++] = {gid_from(gids[index].address), static_cast<uint32_t>(index),
                          static_cast<uint32_t>(port + 1), verbs_type(gids[index].type),
                          gids[index].interface_index};
    }
  }
  return static_cast<ssize_t>(count);
}

int fork_init() {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  model.counters.fork_inits++;
  return 0;
}

ibv_fork_status is_fork_initialized() {
  return fake_model().options.fork_unneeded ? IBV_FORK_UNNEEDED : IBV_FORK_DISABLED;
}

ibv_event_type verbs_event(EventKind kind) {
  switch (kind) {
    case EventKind::kPortUp:
      return IBV_EVENT_PORT_ACTIVE;
    case EventKind::kPortDown:
      return IBV_EVENT_PORT_ERR;
    case EventKind::kDeviceFatal:
      return IBV_EVENT_DEVICE_FATAL;
    case EventKind::kQueuePairFatal:
      return IBV_EVENT_QP_FATAL;
    case EventKind::kQueuePairAccess:
      return IBV_EVENT_QP_ACCESS_ERR;
    case EventKind::kGidChange:
      return IBV_EVENT_GID_CHANGE;
    case EventKind::kLidChange:
      return IBV_EVENT_LID_CHANGE;
    case EventKind::kConnectionEstablished:
      return IBV_EVENT_COMM_EST;
    default:
      return IBV_EVENT_SM_CHANGE;
  }
}

void tell_device_locked(FakeModel& model, const FakeDeviceState& device, EventKind kind, int port) {
  for (FakeContext* context : model.contexts)
    if (context->owner == &device)
      model.tell_locked(*context, {.element = {.port_num = port}, .event_type = verbs_event(kind)});
}

ibv_wc_status verbs_status(Status status) {
  constexpr std::pair<Status, ibv_wc_status> kStatuses[] = {
      {Status::kLocalLength, IBV_WC_LOC_LEN_ERR},
      {Status::kLocalProtection, IBV_WC_LOC_PROT_ERR},
      {Status::kFlushed, IBV_WC_WR_FLUSH_ERR},
      {Status::kRemoteInvalidRequest, IBV_WC_REM_INV_REQ_ERR},
      {Status::kRemoteAccess, IBV_WC_REM_ACCESS_ERR},
      {Status::kRemoteOperation, IBV_WC_REM_OP_ERR},
      {Status::kRetryExceeded, IBV_WC_RETRY_EXC_ERR},
      {Status::kReceiverNotReady, IBV_WC_RNR_RETRY_EXC_ERR},
      {Status::kFatal, IBV_WC_FATAL_ERR},
  };
  for (auto [ours, theirs] : kStatuses)
    if (ours == status) return theirs;
  return IBV_WC_GENERAL_ERR;
}

}  // namespace

FakeModel& fake_model() { return *current.load(std::memory_order_acquire); }
void set_fake_model(FakeModel* model) { current.store(model, std::memory_order_release); }

Fd make_counter() { return Fd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)); }

void count_up(const Fd& fd) {
  uint64_t one = 1;
  invariant(::write(fd.get(), &one, sizeof one) == sizeof one, "an eventfd takes no more");
}

bool count_down(int fd) {
  uint64_t one = 0;
  return ::read(fd, &one, sizeof one) == sizeof one;
}

void fill_device_calls(Table* table) {
  table->get_device_list = get_device_list;
  table->free_device_list = free_device_list;
  table->get_device_name = get_device_name;
  table->open_device = open_device;
  table->close_device = close_device;
  table->query_device = query_device;
  table->query_port_compat = query_port_of_fake;
  table->query_gid = query_gid;
  table->query_gid_table = query_gid_table;
  table->fork_init = fork_init;
  table->is_fork_initialized = is_fork_initialized;
}

FakePortState* FakeDeviceState::find_port(int number) {
  if (number < 1 || std::cmp_greater(number, ports.size())) return nullptr;
  return &ports[static_cast<size_t>(number - 1)];
}

FakeDeviceState* FakeModel::find_device(const std::string& name) {
  for (auto& device : devices)
    if (name == device->name) return device.get();
  throw Error(Code::kInternal, "the fake has no device " + name);
}

FakeModel::FakeModel(FakeOptions wanted) : options(std::move(wanted)) {
  for (const FakeDevice& device : options.devices) {
    auto state = std::make_unique<FakeDeviceState>();
    std::strncpy(state->name, device.name.c_str(), sizeof state->name - 1);
    state->transport_type = device.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    state->device = device;
    for (const FakePort& port : device.ports) state->ports.push_back({port});
    devices.push_back(std::move(state));
  }
  fill_device_calls(&table);
  fill_object_calls(&table);
  fill_queue_pair_calls(&table);
  if (!options.has_gid_table) table.query_gid_table = nullptr;
  set_fake_model(this);
  installed = std::make_unique<ScopedTable>(table);
  mover = std::thread([this] { run(); });
}

FakeModel::~FakeModel() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  mover.join();
  installed.reset();
  set_fake_model(nullptr);
}

int FakeModel::failure_of_locked(FakeCall call) {
  auto& [nth, error] = failures[static_cast<size_t>(call)];
  return nth > 0 && --nth == 0 ? error : 0;
}

FakeVerbs::FakeVerbs(FakeOptions options)
    : model_(std::make_unique<FakeModel>(std::move(options))) {}
FakeVerbs::~FakeVerbs() = default;

void FakeVerbs::fail(FakeCall call, int nth, int error) {
  std::lock_guard lock(model_->mutex);
  model_->failures[static_cast<size_t>(call)] = {nth, error};
}

void FakeVerbs::fail_completion(int nth, Status status) {
  std::lock_guard lock(model_->mutex);
  model_->failing_completion = {nth, verbs_status(status)};
}

void FakeVerbs::set_link(const std::string& device, int port, bool up) {
  std::lock_guard lock(model_->mutex);
  FakeDeviceState* state = model_->find_device(device);
  state->find_port(port)->port.state = up ? PortState::kActive : PortState::kDown;
  tell_device_locked(*model_, *state, up ? EventKind::kPortUp : EventKind::kPortDown, port);
  model_->pump_all_locked();
}

void FakeVerbs::set_loss(const std::string& device, int port, bool lost) {
  std::lock_guard lock(model_->mutex);
  model_->find_device(device)->find_port(port)->lost = lost;
  model_->pump_all_locked();
}

void FakeVerbs::set_gids(const std::string& device, int port, const std::vector<FakeGid>& gids) {
  std::lock_guard lock(model_->mutex);
  FakeDeviceState* state = model_->find_device(device);
  state->find_port(port)->port.gids = gids;
  tell_device_locked(*model_, *state, EventKind::kGidChange, port);
}

void FakeVerbs::raise(const std::string& device, EventKind kind, uint32_t number) {
  std::lock_guard lock(model_->mutex);
  FakeDeviceState* state = model_->find_device(device);
  bool of_pair = kind == EventKind::kQueuePairFatal || kind == EventKind::kQueuePairAccess ||
                 kind == EventKind::kConnectionEstablished;
  if (!of_pair) tell_device_locked(*model_, *state, kind, static_cast<int>(number));
  for (auto [qp_num, pair] : model_->queue_pairs) {
    bool meant = of_pair ? qp_num == number
                         : kind == EventKind::kDeviceFatal &&
                               static_cast<FakeContext*>(pair->context)->owner == state;
    if (!meant) continue;
    if (kind != EventKind::kConnectionEstablished) model_->to_error_locked(*pair);
    if (of_pair)
      model_->tell_locked(*static_cast<FakeContext*>(pair->context),
                          {.element = {.qp = pair}, .event_type = verbs_event(kind)});
  }
}

FakeCounters FakeVerbs::counters() const {
  std::lock_guard lock(model_->mutex);
  return model_->counters;
}

std::vector<std::string> FakeVerbs::misuses() const {
  std::lock_guard lock(model_->mutex);
  return model_->misuses;
}

int FakeVerbs::objects_left() const {
  std::lock_guard lock(model_->mutex);
  return model_->objects;
}

}  // namespace ringcoll::verbs
