#include "verbs/handles.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "base/log.h"
#include "verbs/device_list.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

unsigned flags_of(Access access) {
  unsigned flags = 0;
  if (has(access, Access::kLocalWrite)) flags |= IBV_ACCESS_LOCAL_WRITE;
  if (has(access, Access::kRemoteWrite)) flags |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (has(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (has(access, Access::kRelaxedOrdering)) flags |= IBV_ACCESS_RELAXED_ORDERING;
  return flags;
}

ibv_mr* register_memory(const Table& table, ibv_pd* domain, void* data, size_t bytes,
                        unsigned flags) {
  bool optional = (flags & IBV_ACCESS_OPTIONAL_RANGE) != 0;
  if (optional && table.reg_mr_iova2)
    return table.reg_mr_iova2(domain, data, bytes, reinterpret_cast<uintptr_t>(data), flags);
  // An older library takes no optional flags. By their name they may be dropped.
  return table.reg_mr(domain, data, bytes, static_cast<int>(flags & ~IBV_ACCESS_OPTIONAL_RANGE));
}

// The library also says ENOENT if the device file is there and may not be opened.
int cause_of_refusal(const ibv_device& device, int error) {
  std::string file = fmt::format("/dev/infiniband/{}", device.dev_name);
  bool there = error == ENOENT && ::access(file.c_str(), F_OK) == 0;
  return there && ::access(file.c_str(), R_OK | W_OK) != 0 ? errno : error;
}

void make_non_blocking(int fd, const char* call, const PortId& port_id) {
  int flags = ::fcntl(fd, F_GETFL);
  check_not_negative(flags < 0 ? flags : ::fcntl(fd, F_SETFL, flags | O_NONBLOCK), call, port_id);
}

}  // namespace

template <typename Object>
void Handle<Object>::report(int result, const char* call, const PortId& port_id) noexcept {
  if (result == 0) return;
  log_warning(
      "{} [{}]: something that was made from it is left, or an event of it was not "
      "acknowledged; it leaks",
      errno_text(call, error_of(result)), port_id.text());
}
template class Handle<ibv_context>;
template class Handle<ibv_pd>;
template class Handle<ibv_comp_channel>;
template class Handle<ibv_cq>;
template class Handle<ibv_mr>;
template class Handle<ibv_qp>;

Context::Context(const std::string& device) {
  const Table& calls = verbs::table();
  DeviceList list(calls);
  ibv_device* found = list.find(device);
  check(found, Code::kTransport,
        "ibv_get_device_list: there is no RDMA device \"{}\"; there are: {}", device,
        list.names().empty() ? "none" : fmt::format("{}", fmt::join(list.names(), ", ")));
  PortId port_id{.device = device};
  ibv_context* context = calls.open_device(found);
  if (!context) fail("ibv_open_device", cause_of_refusal(*found, errno), port_id);
  handle_ = {calls, context, [](const Table& t, ibv_context* c) { return t.close_device(c); },
             "ibv_close_device", port_id};
}

ProtectionDomain::ProtectionDomain(const Context& context) {
  const Table& calls = context.table();
  ibv_pd* domain = check_object(calls.alloc_pd(context.get()), "ibv_alloc_pd", context.port_id());
  handle_ = {calls, domain, [](const Table& t, ibv_pd* pd) { return t.dealloc_pd(pd); },
             "ibv_dealloc_pd", context.port_id()};
}

CompletionChannel::CompletionChannel(const Context& context) {
  const Table& calls = context.table();
  ibv_comp_channel* channel = check_object(calls.create_comp_channel(context.get()),
                                           "ibv_create_comp_channel", context.port_id());
  handle_ = {calls, channel,
             [](const Table& t, ibv_comp_channel* c) { return t.destroy_comp_channel(c); },
             "ibv_destroy_comp_channel", context.port_id()};
  make_non_blocking(fd(), "fcntl of a completion channel", context.port_id());
}

int CompletionChannel::fd() const { return handle_.get()->fd; }

int CompletionChannel::drain() {
  const Table& calls = handle_.table();
  for (int events = 0;; events++) {
    ibv_cq* queue = nullptr;
    void* own = nullptr;
    if (calls.get_cq_event(handle_.get(), &queue, &own) != 0) {
      if (errno != EAGAIN && errno != EINTR) fail("ibv_get_cq_event", errno, handle_.port_id());
      return events;
    }
    // Acknowledged at once: destroying the queue waits for unacknowledged events.
    calls.ack_cq_events(queue, 1);
  }
}

CompletionQueue::CompletionQueue(const Context& context, int capacity,
                                 const CompletionChannel* channel) {
  const Table& calls = context.table();
  ibv_comp_channel* told = channel ? channel->get() : nullptr;
  ibv_cq* queue = check_object(calls.create_cq(context.get(), capacity, nullptr, told, 0),
                               "ibv_create_cq", context.port_id());
  handle_ = {calls, queue, [](const Table& t, ibv_cq* cq) { return t.destroy_cq(cq); },
             "ibv_destroy_cq", context.port_id()};
}

size_t CompletionQueue::poll(std::span<Completion> into) {
  constexpr size_t kBatch = 16;
  std::array<ibv_wc, kBatch> batch;
  size_t taken = 0;
  while (taken < into.size()) {
    int wanted = static_cast<int>(std::min(kBatch, into.size() - taken));
    int got = ibv_poll_cq(handle_.get(), wanted, batch.data());
    if (got < 0) [[unlikely]]
      throw Error(Code::kTransport,
                  fmt::format("ibv_poll_cq [{}]: the completion queue is lost: it overflowed, or "
                              "the device failed; see the kernel log (dmesg)",
                              handle_.port_id().text()));
    for (int i = 0; i < got; i++) into[taken + i] = Completion(batch[i]);
    taken += static_cast<size_t>(got);
    if (got < wanted) break;
  }
  return taken;
}

void CompletionQueue::arm(bool solicited_only) {
  check_zero(ibv_req_notify_cq(handle_.get(), solicited_only ? 1 : 0), "ibv_req_notify_cq",
             handle_.port_id());
}

int CompletionQueue::capacity() const { return handle_.get()->cqe; }

MemoryRegion::MemoryRegion(const ProtectionDomain& domain, void* data, size_t bytes,
                           Access access) {
  const Table& calls = domain.table();
  ibv_mr* region = register_memory(calls, domain.get(), data, bytes, flags_of(access));
  if (!region) [[unlikely]]
    fail(fmt::format("ibv_reg_mr({} bytes)", bytes), errno, domain.port_id());
  handle_ = {calls, region, [](const Table& t, ibv_mr* mr) { return t.dereg_mr(mr); },
             "ibv_dereg_mr", domain.port_id()};
}

uint32_t MemoryRegion::lkey() const { return handle_.get()->lkey; }
uint32_t MemoryRegion::rkey() const { return handle_.get()->rkey; }
uint64_t MemoryRegion::address() const { return reinterpret_cast<uintptr_t>(handle_.get()->addr); }
size_t MemoryRegion::bytes() const { return handle_.get()->length; }

bool MemoryRegion::contains(const void* data, size_t bytes) const {
  auto at = reinterpret_cast<uintptr_t>(data);
  return at >= address() && bytes <= this->bytes() && at - address() <= this->bytes() - bytes;
}

}  // namespace ringcoll::verbs
