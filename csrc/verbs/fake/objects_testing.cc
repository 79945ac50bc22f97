// Domains, memory, channels, completion queues and events of the fake device.
#include <algorithm>
#include <cerrno>

#include "verbs/fake/model_testing.h"

namespace ringcoll::verbs {
namespace {

FakeContext* context_of(ibv_context* context) { return static_cast<FakeContext*>(context); }

ibv_pd* alloc_pd(ibv_context* context) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kAllocateDomain)) return refuse<ibv_pd>(error);
  auto* domain = new FakeDomain{};
  domain->context = context;
  context_of(context)->users++;
  model.objects++;
  return domain;
}

int dealloc_pd(ibv_pd* pd) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* domain = static_cast<FakeDomain*>(pd);
  if (domain->users) return EBUSY;
  context_of(pd->context)->users--;
  model.objects--;
  delete domain;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* pd, void* data, size_t bytes, int access) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kRegisterMemory)) return refuse<ibv_mr>(error);
  bool remote_only = (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE);
  if (remote_only || bytes == 0) return refuse<ibv_mr>(EINVAL);
  FakeDeviceState* device = context_of(pd->context)->owner;
  if (bytes > device->device.memlock_bytes - device->registered_bytes)
    return refuse<ibv_mr>(ENOMEM);
  device->registered_bytes += bytes;
  auto* region = new FakeRegion{};
  region->context = pd->context;
  region->pd = pd;
  region->addr = data;
  region->length = bytes;
  region->lkey = model.next_key++;
  region->rkey = region->lkey | kRemoteKeyBit;
  region->access = static_cast<unsigned>(access);
  model.regions[region->lkey] = region;
  static_cast<FakeDomain*>(pd)->users++;
  model.counters.regions_made++;
  model.objects++;
  return region;
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* data, size_t bytes, uint64_t, unsigned access) {
  return reg_mr(pd, data, bytes, static_cast<int>(access & ~IBV_ACCESS_OPTIONAL_RANGE));
}

int dereg_mr(ibv_mr* mr) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* region = static_cast<FakeRegion*>(mr);
  context_of(mr->context)->owner->registered_bytes -= region->length;
  model.regions.erase(region->lkey);
  static_cast<FakeDomain*>(mr->pd)->users--;
  model.objects--;
  delete region;
  return 0;
}

ibv_comp_channel* create_channel(ibv_context* context) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kCreateChannel))
    return refuse<ibv_comp_channel>(error);
  auto* channel = new FakeChannel{};
  channel->context = context;
  channel->ready = make_counter();
  channel->fd = channel->ready.get();
  context_of(context)->users++;
  model.objects++;
  return channel;
}

int destroy_channel(ibv_comp_channel* made) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* channel = static_cast<FakeChannel*>(made);
  if (channel->users) return EBUSY;
  context_of(made->context)->users--;
  model.objects--;
  delete channel;
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int capacity, void* own, ibv_comp_channel* channel, int) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kCreateQueue)) return refuse<ibv_cq>(error);
  if (capacity < 1 || capacity > context_of(context)->owner->device.max_completions)
    return refuse<ibv_cq>(EINVAL);
  auto* queue = new FakeQueue{};
  queue->context = context;
  queue->channel = channel;
  queue->cq_context = own;
  // Not one more than asked for, as a device might give, so that an overflow is found.
  queue->cqe = capacity;
  queue->room = static_cast<size_t>(capacity);
  if (channel) static_cast<FakeChannel*>(channel)->users++;
  context_of(context)->users++;
  model.objects++;
  return queue;
}

int destroy_cq(ibv_cq* made) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* queue = static_cast<FakeQueue*>(made);
  if (queue->users) return EBUSY;
  if (queue->unacknowledged)
    model.misuses.push_back(fmt::format("ibv_destroy_cq would hang: {} events not acknowledged",
                                        queue->unacknowledged));
  if (auto* channel = static_cast<FakeChannel*>(queue->channel)) {
    // As the kernel does: events that nobody has taken go with their queue.
    for (size_t i = std::erase(channel->events, queue); i > 0; i--) count_down(channel->fd);
    channel->users--;
  }
  auto of_queue = [&](const ibv_async_event& e) {
    return e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == made;
  };
  FakeContext* context = context_of(made->context);
  for (size_t i = std::erase_if(context->events, of_queue); i > 0; i--)
    count_down(context->async_fd);
  context->users--;
  model.objects--;
  delete queue;
  return 0;
}

int get_cq_event(ibv_comp_channel* made, ibv_cq** queue, void** own) {
  auto* channel = static_cast<FakeChannel*>(made);
  while (count_down(channel->fd)) {
    std::lock_guard lock(fake_model().mutex);
    if (channel->events.empty()) continue;  // its queue was destroyed meanwhile
    FakeQueue* first = channel->events.front();
    channel->events.pop_front();
    first->unacknowledged++;
    *queue = first;
    *own = first->cq_context;
    return 0;
  }
  return -1;
}

void ack_cq_events(ibv_cq* queue, unsigned count) {
  std::lock_guard lock(fake_model().mutex);
  static_cast<FakeQueue*>(queue)->unacknowledged -= static_cast<int>(count);
}

bool of_queue_pair(ibv_event_type type) {
  return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_ACCESS_ERR ||
         type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_COMM_EST;
}

void count_acknowledged(const ibv_async_event& event, int change) {
  if (of_queue_pair(event.event_type))
    static_cast<FakeQueuePair*>(event.element.qp)->unacknowledged += change;
  if (event.event_type == IBV_EVENT_CQ_ERR)
    static_cast<FakeQueue*>(event.element.cq)->unacknowledged += change;
}

int get_async_event(ibv_context* made, ibv_async_event* event) {
  FakeContext* context = context_of(made);
  while (count_down(context->async_fd)) {
    std::lock_guard lock(fake_model().mutex);
    if (context->events.empty()) continue;
    *event = context->events.front();
    context->events.pop_front();
    count_acknowledged(*event, 1);
    return 0;
  }
  return -1;
}

void ack_async_event(ibv_async_event* event) {
  std::lock_guard lock(fake_model().mutex);
  count_acknowledged(*event, -1);
}

}  // namespace

bool FakeRegion::covers(uint64_t address, uint64_t bytes) const {
  auto begin = reinterpret_cast<uintptr_t>(addr);
  return address >= begin && bytes <= length && address - begin <= length - bytes;
}

void FakeModel::tell_locked(FakeContext& context, const ibv_async_event& event) {
  context.events.push_back(event);
  count_up(context.async);
}

void FakeModel::complete_locked(FakeQueue& queue, const FakeEntry& entry) {
  if (queue.lost) return;
  if (queue.entries.size() == queue.room) {
    queue.lost = true;
    tell_locked(*static_cast<FakeContext*>(queue.context),
                {.element = {.cq = &queue}, .event_type = IBV_EVENT_CQ_ERR});
    for (auto [number, pair] : queue_pairs)
      if (pair->send_cq == &queue || pair->recv_cq == &queue) to_error_locked(*pair);
    return;
  }
  queue.entries.push_back(entry);
  bool urgent = entry.solicited || entry.wc.status != IBV_WC_SUCCESS;
  bool tells = queue.armed == FakeQueue::Armed::kAny ||
               (queue.armed == FakeQueue::Armed::kSolicited && urgent);
  auto* channel = static_cast<FakeChannel*>(queue.channel);
  if (!tells || !channel) return;
  queue.armed = FakeQueue::Armed::kNo;
  channel->events.push_back(&queue);
  count_up(channel->ready);
}

int fake_poll(ibv_cq* cq, int count, ibv_wc* into) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto& queue = *static_cast<FakeQueue*>(cq);
  if (queue.lost) return -1;
  int taken = 0;
  for (; taken < count && !queue.entries.empty(); taken++) {
    FakeEntry& entry = queue.entries.front();
    into[taken] = entry.wc;
    FakeQueuePair& pair = *entry.queue_pair;
    if (entry.send_sequence) pair.sends_retired = std::max(pair.sends_retired, entry.send_sequence);
    if (!entry.send_sequence) pair.receives_retired++;
    queue.entries.pop_front();
  }
  return taken;
}

int fake_arm(ibv_cq* cq, int solicited_only) {
  std::lock_guard lock(fake_model().mutex);
  auto& queue = *static_cast<FakeQueue*>(cq);
  // Armed for any stays so: a second call never makes the first one weaker.
  if (queue.armed != FakeQueue::Armed::kAny)
    queue.armed = solicited_only ? FakeQueue::Armed::kSolicited : FakeQueue::Armed::kAny;
  return 0;
}

void fill_object_calls(Table* table) {
  table->alloc_pd = alloc_pd;
  table->dealloc_pd = dealloc_pd;
  table->reg_mr = reg_mr;
  table->reg_mr_iova2 = reg_mr_iova2;
  table->dereg_mr = dereg_mr;
  table->create_comp_channel = create_channel;
  table->destroy_comp_channel = destroy_channel;
  table->create_cq = create_cq;
  table->destroy_cq = destroy_cq;
  table->get_cq_event = get_cq_event;
  table->ack_cq_events = ack_cq_events;
  table->get_async_event = get_async_event;
  table->ack_async_event = ack_async_event;
}

}  // namespace ringcoll::verbs
