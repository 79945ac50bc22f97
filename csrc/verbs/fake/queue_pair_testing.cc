// Queue pairs of the fake device: states, posting, and carrying writes out.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/fake/model_testing.h"

namespace ringcoll::verbs {
namespace {

constexpr uint32_t kFirstNumber = 0x11;
constexpr int kForEver = 7;  // of the retries of a receiver that is not ready

FakeQueue& send_queue(FakeQueuePair& pair) { return *static_cast<FakeQueue*>(pair.send_cq); }
FakeQueue& receive_queue(FakeQueuePair& pair) { return *static_cast<FakeQueue*>(pair.recv_cq); }
FakeDeviceState& device_of(const FakeQueuePair& pair) {
  return *static_cast<FakeContext*>(pair.context)->owner;
}

uint32_t next_number() {
  static std::atomic<uint32_t> next{kFirstNumber};  // of the process: never used twice
  return next++;
}

// ---- states ----

struct Transition {
  ibv_qp_state from, to;
  int required;
};

// InfiniBand specification, volume 1, table 96: what each step must be given.
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT,
     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC},
};

bool allowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) return mask == IBV_QP_STATE;
  return std::ranges::any_of(kTransitions, [&](const Transition& t) {
    return t.from == from && t.to == to && t.required == mask;
  });
}

bool same_gid(const ibv_gid& gid, const std::string& address) {
  Gid raw;
  std::memcpy(raw.bytes.data(), gid.raw, raw.bytes.size());
  return raw.text() == address;
}

/// 0, or why a device refuses these attributes of a path.
int refusal_of_path(const FakeQueuePair& pair, const ibv_qp_attr& wanted) {
  FakePortState* port = device_of(pair).find_port(pair.attributes.port_num);
  if (128u << wanted.path_mtu > port->port.mtu_bytes) return EINVAL;
  const ibv_ah_attr& path = wanted.ah_attr;
  if (path.port_num != pair.attributes.port_num) return EINVAL;
  if (!path.is_global) return port->port.link_layer == LinkLayer::kEthernet ? EINVAL : 0;
  const auto& gids = port->port.gids;
  bool there = path.grh.sgid_index < gids.size() && !gids[path.grh.sgid_index].address.empty();
  return there ? 0 : EINVAL;
}

bool any_port_has(FakeModel& model, const ibv_gid& gid) {
  for (auto& device : model.devices)
    for (const FakePortState& port : device->ports)
      for (const FakeGid& entry : port.port.gids)
        if (same_gid(gid, entry.address)) return true;
  return false;
}

void merge(ibv_qp_attr* now, const ibv_qp_attr& wanted) {
  now->qp_state = wanted.qp_state;
  if (wanted.qp_state == IBV_QPS_INIT) {
    now->port_num = wanted.port_num;
    now->qp_access_flags = wanted.qp_access_flags;
  } else if (wanted.qp_state == IBV_QPS_RTR) {
    now->ah_attr = wanted.ah_attr;
    now->path_mtu = wanted.path_mtu;
    now->dest_qp_num = wanted.dest_qp_num;
    now->rq_psn = wanted.rq_psn;
    now->max_dest_rd_atomic = wanted.max_dest_rd_atomic;
  } else if (wanted.qp_state == IBV_QPS_RTS) {
    now->sq_psn = wanted.sq_psn;
    now->timeout = wanted.timeout;
    now->retry_cnt = wanted.retry_cnt;
    now->rnr_retry = wanted.rnr_retry;
    now->max_rd_atomic = wanted.max_rd_atomic;
  }
}

int modify_locked(FakeModel& model, FakeQueuePair& pair, const ibv_qp_attr& wanted, int mask) {
  if (int error = model.failure_of_locked(FakeCall::kModifyQueuePair)) return error;
  if (!allowed(pair.attributes.qp_state, wanted.qp_state, mask)) return EINVAL;
  if (wanted.qp_state == IBV_QPS_ERR) {
    model.to_error_locked(pair);
    return 0;
  }
  if (wanted.qp_state == IBV_QPS_INIT && !device_of(pair).find_port(wanted.port_num)) return EINVAL;
  if (wanted.qp_state == IBV_QPS_RTR) {
    if (int error = refusal_of_path(pair, wanted)) return error;
    // As the kernel does when nobody answers for the address.
    if (wanted.ah_attr.is_global && !any_port_has(model, wanted.ah_attr.grh.dgid)) return ETIMEDOUT;
  }
  if (std::max(wanted.max_rd_atomic, wanted.max_dest_rd_atomic) > kFakeReadsInFlight) return EINVAL;
  merge(&pair.attributes, wanted);
  pair.state = wanted.qp_state;
  if (wanted.qp_state == IBV_QPS_RESET) {
    pair.sends.clear();
    pair.receives.clear();
    pair.sends_posted = pair.sends_retired = pair.receives_posted = pair.receives_retired = 0;
  }
  model.pump_peer_locked(pair);
  return 0;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  if (int error = model.failure_of_locked(FakeCall::kCreateQueuePair)) return refuse<ibv_qp>(error);
  const FakeDevice& device = static_cast<FakeContext*>(pd->context)->owner->device;
  const ibv_qp_cap& cap = wanted->cap;
  auto most = static_cast<uint32_t>(device.max_work_requests);
  auto slices = static_cast<uint32_t>(device.max_slices);
  bool fits = cap.max_send_wr <= most && cap.max_recv_wr <= most && cap.max_send_sge <= slices &&
              cap.max_recv_sge <= slices && cap.max_inline_data <= device.max_inline_bytes;
  if (wanted->qp_type != IBV_QPT_RC || !fits) return refuse<ibv_qp>(EINVAL);
  auto* pair = new FakeQueuePair{};
  pair->context = pd->context;
  pair->pd = pd;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->qp_type = wanted->qp_type;
  pair->qp_num = next_number();
  pair->limits = cap;
  pair->signal_all = wanted->sq_sig_all != 0;
  send_queue(*pair).users++;
  receive_queue(*pair).users++;
  static_cast<FakeDomain*>(pd)->users++;
  model.queue_pairs[pair->qp_num] = pair;
  model.counters.queue_pairs_made++;
  model.objects++;
  return pair;
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  return modify_locked(model, *static_cast<FakeQueuePair*>(qp), *wanted, mask);
}

int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* made) {
  std::lock_guard lock(fake_model().mutex);
  auto& pair = *static_cast<FakeQueuePair*>(qp);
  *attributes = pair.attributes;
  made->cap = pair.limits;
  return 0;
}

int destroy_qp(ibv_qp* qp) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto* pair = static_cast<FakeQueuePair*>(qp);
  if (pair->unacknowledged)
    model.misuses.push_back(
        fmt::format("ibv_destroy_qp would hang: {} events not acknowledged", pair->unacknowledged));
  auto* context = static_cast<FakeContext*>(pair->context);
  auto of_pair = [&](const ibv_async_event& e) {
    bool pairs = e.event_type == IBV_EVENT_QP_FATAL || e.event_type == IBV_EVENT_QP_REQ_ERR ||
                 e.event_type == IBV_EVENT_QP_ACCESS_ERR || e.event_type == IBV_EVENT_COMM_EST;
    return pairs && e.element.qp == qp;
  };
  for (size_t i = std::erase_if(context->events, of_pair); i > 0; i--)
    count_down(context->async_fd);
  for (FakeQueue* queue : {&send_queue(*pair), &receive_queue(*pair)}) {
    std::erase_if(queue->entries, [&](const FakeEntry& e) { return e.queue_pair == pair; });
    queue->users--;
  }
  static_cast<FakeDomain*>(pair->pd)->users--;
  model.queue_pairs.erase(pair->qp_num);
  model.objects--;
  delete pair;
  return 0;
}

// ---- posting ----

uint64_t bytes_of(const ibv_send_wr& request) {
  uint64_t bytes = 0;
  for (int i = 0; i < request.num_sge; i++) bytes += request.sg_list[i].length;
  return bytes;
}

bool is_read(const ibv_send_wr& request) { return request.opcode == IBV_WR_RDMA_READ; }

int refusal_of_send(FakeModel& model, const FakeQueuePair& pair, const ibv_send_wr& request) {
  if (int error = model.failure_of_locked(FakeCall::kPostSend)) return error;
  ibv_qp_state state = pair.attributes.qp_state;
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
  bool write = request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!(write || is_read(request)) || request.num_sge < 0) return EINVAL;
  if (is_read(request) &&
      (pair.attributes.max_rd_atomic == 0 || (request.send_flags & IBV_SEND_INLINE)))
    return EINVAL;
  if (std::cmp_greater(request.num_sge, pair.limits.max_send_sge)) return EINVAL;
  bool inlined = request.send_flags & IBV_SEND_INLINE;
  if (inlined && bytes_of(request) > pair.limits.max_inline_data) return EINVAL;
  return pair.sends_posted - pair.sends_retired >= pair.limits.max_send_wr ? ENOMEM : 0;
}

FakeSend take_send(FakeModel& model, FakeQueuePair& pair, const ibv_send_wr& request) {
  FakeSend send;
  send.request = request;
  send.sequence = ++pair.sends_posted;
  send.slices.assign(request.sg_list, request.sg_list + request.num_sge);
  send.bytes = bytes_of(request);
  if (request.send_flags & IBV_SEND_INLINE) {
    for (const ibv_sge& slice : send.slices) {
      const auto* from = reinterpret_cast<const std::byte*>(slice.addr);
      send.inlined.insert(send.inlined.end(), from, from + slice.length);
    }
    send.slices.clear();
    model.counters.inline_bytes += send.bytes;
  }
  return send;
}

// ---- carrying out ----

void finish_send(FakeModel& model, FakeQueuePair& pair, const FakeSend& send,
                 ibv_wc_status status) {
  bool tells =
      status != IBV_WC_SUCCESS || pair.signal_all || (send.request.send_flags & IBV_SEND_SIGNALED);
  if (!tells) return;
  FakeEntry entry{.queue_pair = &pair, .send_sequence = send.sequence};
  entry.wc.wr_id = send.request.wr_id;
  entry.wc.status = status;
  entry.wc.qp_num = pair.qp_num;
  // Nonsense where a device leaves it undefined, so that nobody reads it.
  entry.wc.opcode = status != IBV_WC_SUCCESS ? IBV_WC_TM_NO_TAG
                    : is_read(send.request)  ? IBV_WC_RDMA_READ
                                             : IBV_WC_RDMA_WRITE;
  entry.wc.byte_len = status == IBV_WC_SUCCESS ? static_cast<uint32_t>(send.bytes) : 0xdeadbeef;
  entry.wc.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x80u + static_cast<uint32_t>(status);
  model.complete_locked(send_queue(pair), entry);
}

void flush_receives(FakeModel& model, FakeQueuePair& pair) {
  while (!pair.receives.empty()) {
    FakeEntry entry{.queue_pair = &pair};
    entry.wc.wr_id = pair.receives.front().id;
    entry.wc.status = IBV_WC_WR_FLUSH_ERR;
    entry.wc.qp_num = pair.qp_num;
    pair.receives.pop_front();
    model.complete_locked(receive_queue(pair), entry);
  }
}

bool passes(const FakeQueuePair& pair) {
  const FakePortState* port = device_of(pair).find_port(pair.attributes.port_num);
  return port && port->port.state == PortState::kActive && !port->lost;
}

/// Whether the address in `from` leads to the port of `to`.
bool addressed(const FakeQueuePair& from, const FakeQueuePair& to) {
  const FakePort& port = device_of(to).find_port(to.attributes.port_num)->port;
  const ibv_ah_attr& path = from.attributes.ah_attr;
  if (!path.is_global) return path.dlid == port.lid && port.lid != 0;
  return std::ranges::any_of(
      port.gids, [&](const FakeGid& gid) { return same_gid(path.grh.dgid, gid.address); });
}

/// The peer, if its device would answer.
FakeQueuePair* answering_peer(FakeModel& model, const FakeQueuePair& pair) {
  auto found = model.queue_pairs.find(pair.attributes.dest_qp_num);
  if (found == model.queue_pairs.end()) return nullptr;
  FakeQueuePair& peer = *found->second;
  ibv_qp_state state = peer.attributes.qp_state;
  bool ready = state == IBV_QPS_RTR || state == IBV_QPS_RTS;
  bool expects = ready && peer.attributes.dest_qp_num == pair.qp_num &&
                 peer.attributes.rq_psn == pair.attributes.sq_psn;
  return expects && passes(pair) && passes(peer) && addressed(pair, peer) ? &peer : nullptr;
}

ibv_wc_status local_check(FakeModel& model, const FakeQueuePair& pair, const FakeSend& send) {
  const FakePort& port = device_of(pair).find_port(pair.attributes.port_num)->port;
  if (send.bytes > port.max_message_bytes) return IBV_WC_LOC_LEN_ERR;
  for (const ibv_sge& slice : send.slices) {
    auto region = model.regions.find(slice.lkey);
    bool fine = region != model.regions.end() && region->second->pd == pair.pd &&
                region->second->covers(slice.addr, slice.length) &&
                (!is_read(send.request) || (region->second->access & IBV_ACCESS_LOCAL_WRITE));
    if (!fine && slice.length > 0) return IBV_WC_LOC_PROT_ERR;
  }
  return IBV_WC_SUCCESS;
}

ibv_wc_status remote_check(FakeModel& model, const FakeQueuePair& pair, const FakeQueuePair& peer,
                           const FakeSend& send) {
  uint64_t packet = 128u << std::min(pair.attributes.path_mtu, peer.attributes.path_mtu);
  bool mixed_mtu = pair.attributes.path_mtu != peer.attributes.path_mtu && send.bytes > packet;
  unsigned access = is_read(send.request) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  bool too_many_reads =
      is_read(send.request) && pair.attributes.max_rd_atomic > peer.attributes.max_dest_rd_atomic;
  if (mixed_mtu || too_many_reads || !(peer.attributes.qp_access_flags & access))
    return IBV_WC_REM_INV_REQ_ERR;
  if (send.bytes == 0) return IBV_WC_SUCCESS;  // no key is looked at
  const auto& rdma = send.request.wr.rdma;
  auto region = model.regions.find(rdma.rkey & ~kRemoteKeyBit);
  bool granted = region != model.regions.end() && region->second->rkey == rdma.rkey &&
                 region->second->pd == peer.pd && (region->second->access & access) &&
                 region->second->covers(rdma.remote_addr, send.bytes);
  return granted ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

void move_bytes(FakeModel& model, const FakeSend& send) {
  model.counters.bytes += send.bytes;
  if (is_read(send.request)) {
    const auto* from = reinterpret_cast<const std::byte*>(send.request.wr.rdma.remote_addr);
    for (const ibv_sge& slice : send.slices) {
      std::memcpy(reinterpret_cast<void*>(slice.addr), from, slice.length);
      from += slice.length;
    }
    model.counters.reads++;
    return;
  }
  auto* to = reinterpret_cast<std::byte*>(send.request.wr.rdma.remote_addr);
  if (!send.inlined.empty()) std::memcpy(to, send.inlined.data(), send.inlined.size());
  for (const ibv_sge& slice : send.slices) {
    if (slice.length == 0) continue;
    std::memcpy(to, reinterpret_cast<const void*>(slice.addr), slice.length);
    to += slice.length;
  }
  model.counters.writes++;
}

void deliver_immediate(FakeModel& model, FakeQueuePair& peer, const FakeSend& send) {
  FakeEntry entry{.queue_pair = &peer};
  entry.wc.wr_id = peer.receives.front().id;
  entry.wc.status = IBV_WC_SUCCESS;
  entry.wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  entry.wc.byte_len = static_cast<uint32_t>(send.bytes);
  entry.wc.imm_data = send.request.imm_data;
  entry.wc.wc_flags = IBV_WC_WITH_IMM;
  entry.wc.qp_num = peer.qp_num;
  entry.solicited = (send.request.send_flags & IBV_SEND_SOLICITED) != 0;
  peer.receives.pop_front();
  model.counters.immediates++;
  model.complete_locked(receive_queue(peer), entry);
}

/// Whether a write that waits since it was first tried is given up.
bool too_late(const FakeModel& model, FakeSend& send, bool for_ever) {
  if (send.first_tried == Clock::time_point{}) send.first_tried = Clock::now();
  return !for_ever && Clock::now() - send.first_tried > model.options.give_up_after;
}

bool told_to_fail(FakeModel& model) {
  auto& nth = model.failing_completion.first;
  return nth > 0 && --nth == 0;
}

constexpr ibv_wc_status kWait = static_cast<ibv_wc_status>(-1);

/// What the first write of a queue pair comes to; kWait: not now. The peer learns of its part.
ibv_wc_status attempt(FakeModel& model, FakeQueuePair& pair, FakeSend& send) {
  if (send.first_tried == Clock::time_point{} && told_to_fail(model))
    return model.failing_completion.second;
  if (ibv_wc_status status = local_check(model, pair, send); status != IBV_WC_SUCCESS)
    return status;
  FakeQueuePair* peer = answering_peer(model, pair);
  if (!peer)
    return too_late(model, send, pair.attributes.timeout == 0) ? IBV_WC_RETRY_EXC_ERR : kWait;
  if (ibv_wc_status status = remote_check(model, pair, *peer, send); status != IBV_WC_SUCCESS) {
    auto event = status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    model.to_error_locked(*peer);
    model.tell_locked(*static_cast<FakeContext*>(peer->context),
                      {.element = {.qp = peer}, .event_type = event});
    return status;
  }
  bool immediate = send.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (immediate && peer->receives.empty()) {
    if (send.first_tried == Clock::time_point{}) model.counters.receiver_not_ready++;
    bool for_ever = pair.attributes.rnr_retry == kForEver;
    return too_late(model, send, for_ever) ? IBV_WC_RNR_RETRY_EXC_ERR : kWait;
  }
  move_bytes(model, send);
  if (immediate) deliver_immediate(model, *peer, send);
  return IBV_WC_SUCCESS;
}

}  // namespace

void FakeModel::to_error_locked(FakeQueuePair& pair) {
  pair.attributes.qp_state = pair.state = IBV_QPS_ERR;
  while (!pair.sends.empty()) {
    FakeSend send = std::move(pair.sends.front());
    pair.sends.pop_front();
    finish_send(*this, pair, send, IBV_WC_WR_FLUSH_ERR);
  }
  flush_receives(*this, pair);
}

void FakeModel::pump_locked(FakeQueuePair& from) {
  while (!from.sends.empty()) {
    ibv_wc_status status = attempt(*this, from, from.sends.front());
    if (status == kWait) return;
    if (from.sends.empty()) return;  // a queue that overflowed has flushed it
    FakeSend send = std::move(from.sends.front());
    from.sends.pop_front();
    finish_send(*this, from, send, status);
    if (status != IBV_WC_SUCCESS) to_error_locked(from);
  }
}

void FakeModel::pump_all_locked() {
  for (auto [number, pair] : queue_pairs) pump_locked(*pair);
}

void FakeModel::pump_peer_locked(const FakeQueuePair& to) {
  auto peer = queue_pairs.find(to.attributes.dest_qp_num);
  if (peer != queue_pairs.end() && !options.in_background) pump_locked(*peer->second);
  changed.notify_all();
}

void FakeModel::run() {
  constexpr auto kTick = std::chrono::milliseconds(2);
  std::unique_lock lock(mutex);
  while (!stopping) {
    pump_all_locked();
    changed.wait_for(lock, kTick);
  }
}

int fake_post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto& pair = *static_cast<FakeQueuePair*>(qp);
  int error = 0;
  for (; request; request = request->next) {
    error = refusal_of_send(model, pair, *request);
    if (error) {
      *bad = request;
      break;
    }
    pair.sends.push_back(take_send(model, pair, *request));
    if (pair.attributes.qp_state == IBV_QPS_ERR) model.to_error_locked(pair);
  }
  if (!model.options.in_background) model.pump_locked(pair);
  model.changed.notify_all();
  return error;
}

int fake_post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  FakeModel& model = fake_model();
  std::lock_guard lock(model.mutex);
  auto& pair = *static_cast<FakeQueuePair*>(qp);
  int error = 0;
  for (; request && !error; request = request->next) {
    error = model.failure_of_locked(FakeCall::kPostReceive);
    bool full = pair.receives_posted - pair.receives_retired >= pair.limits.max_recv_wr;
    if (!error && pair.attributes.qp_state == IBV_QPS_RESET) error = EINVAL;
    if (!error && full) error = ENOMEM;
    if (error) {
      *bad = request;
      break;
    }
    pair.receives_posted++;
    pair.receives.push_back({request->wr_id});
    if (pair.attributes.qp_state == IBV_QPS_ERR) flush_receives(model, pair);
  }
  model.pump_peer_locked(pair);
  return error;
}

void fill_queue_pair_calls(Table* table) {
  table->create_qp = create_qp;
  table->modify_qp = modify_qp;
  table->query_qp = query_qp;
  table->destroy_qp = destroy_qp;
}

}  // namespace ringcoll::verbs
