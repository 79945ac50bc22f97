#include "verbs/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

static_assert(sizeof(Slice) == sizeof(ibv_sge) &&
              offsetof(Slice, address) == offsetof(ibv_sge, addr) &&
              offsetof(Slice, bytes) == offsetof(ibv_sge, length) &&
              offsetof(Slice, lkey) == offsetof(ibv_sge, lkey));
static_assert(sizeof(Gid) == sizeof(ibv_gid));

// Work requests of one call to the device. More are posted in several calls.
constexpr size_t kBatch = 16;
constexpr uint32_t kPsnMask = 0xffffff;

ibv_mtu mtu_of(uint32_t bytes) {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  return bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

unsigned access_of(Access access) {
  unsigned flags = 0;
  if (has(access, Access::kRemoteWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (has(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  return flags;
}

ibv_ah_attr path_of(const Connection& c) {
  ibv_ah_attr path{};
  path.port_num = c.port;
  path.dlid = c.remote_lid;
  path.sl = c.service_level;
  if (!c.global_route) return path;
  path.is_global = 1;
  std::memcpy(path.grh.dgid.raw, c.remote_gid.bytes.data(), sizeof path.grh.dgid.raw);
  path.grh.sgid_index = c.gid_index;
  path.grh.hop_limit = c.hop_limit;
  path.grh.traffic_class = c.traffic_class;
  path.grh.flow_label = c.flow_label;
  return path;
}

QueuePairState state_of(ibv_qp_state state) {
  switch (state) {
    case IBV_QPS_RESET:
      return QueuePairState::kReset;
    case IBV_QPS_INIT:
      return QueuePairState::kInit;
    case IBV_QPS_RTR:
      return QueuePairState::kReadyToReceive;
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
      return QueuePairState::kReadyToSend;
    default:
      return QueuePairState::kError;
  }
}

void fill(ibv_send_wr* request, const Write& write) {
  *request = {};
  request->wr_id = write.id;
  // Verbs only reads the list, though its type does not say so.
  request->sg_list = reinterpret_cast<ibv_sge*>(const_cast<Slice*>(write.from.data()));
  request->num_sge = static_cast<int>(write.from.size());
  request->opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (write.immediate) request->imm_data = htonl(*write.immediate);
  if (write.signaled) request->send_flags |= IBV_SEND_SIGNALED;
  if (write.solicited) request->send_flags |= IBV_SEND_SOLICITED;
  if (write.inlined) request->send_flags |= IBV_SEND_INLINE;
  request->wr.rdma.remote_addr = write.remote_address;
  request->wr.rdma.rkey = write.rkey;
}

void fill(ibv_send_wr* request, const Read& read) {
  *request = {};
  request->wr_id = read.id;
  request->sg_list = reinterpret_cast<ibv_sge*>(const_cast<Slice*>(read.into.data()));
  request->num_sge = static_cast<int>(read.into.size());
  request->opcode = IBV_WR_RDMA_READ;
  request->send_flags = IBV_SEND_SIGNALED;
  request->wr.rdma.remote_addr = read.remote_address;
  request->wr.rdma.rkey = read.rkey;
}

/// How many requests of a chain were taken. Throws unless the rest did not fit. The chain is an
/// array.
template <typename Request>
size_t taken(int result, const char* call, const Request* first, const Request* bad, size_t count,
             const PortId& port_id) {
  if (result == 0) [[likely]]
    return count;
  int error = error_of(result);
  if (error != ENOMEM && error != EAGAIN) fail(call, error, port_id);
  return bad ? static_cast<size_t>(bad - first) : 0;
}

}  // namespace

bool Gid::is_ipv4() const {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

bool Gid::is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

uint64_t Gid::subnet_prefix() const {
  uint64_t prefix = 0;
  for (int i = 0; i < 8; i++) prefix = prefix << 8 | bytes[i];
  return prefix;
}

std::string Gid::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_ipv4())
    ::inet_ntop(AF_INET, bytes.data() + 12, text, sizeof text);
  else
    ::inet_ntop(AF_INET6, bytes.data(), text, sizeof text);
  return text;
}

double retry_seconds(int timeout_exponent, int retries) {
  if (timeout_exponent <= 0) return 0;
  return 4.096e-6 * static_cast<double>(uint64_t{1} << timeout_exponent) * (retries + 1);
}

const char* name_of(QueuePairState state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "ERROR"};
  return kNames[static_cast<size_t>(state)];
}

QueuePair::QueuePair(const ProtectionDomain& domain, const CompletionQueue& sends,
                     const CompletionQueue& receives, const QueuePairLimits& limits)
    : port_id_(domain.port_id()) {
  auto wanted = zeroed<ibv_qp_init_attr>();
  wanted.send_cq = sends.get();
  wanted.recv_cq = receives.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {limits.send_requests, limits.receive_requests, limits.send_pieces,
                limits.receive_pieces, limits.inline_bytes};
  const Table& calls = domain.table();
  ibv_qp* qp = check_object(calls.create_qp(domain.get(), &wanted), "ibv_create_qp", port_id_);
  handle_ = {calls, qp, [](const Table& t, ibv_qp* q) { return t.destroy_qp(q); }, "ibv_destroy_qp",
             port_id_};
  limits_ = {wanted.cap.max_send_wr, wanted.cap.max_recv_wr, wanted.cap.max_send_sge,
             wanted.cap.max_recv_sge, wanted.cap.max_inline_data};
}

uint32_t QueuePair::number() const { return handle_.get()->qp_num; }

void QueuePair::expect(QueuePairState before, const char* step) const {
  invariant(state_ == before, "queue pair {:#x} [{}]: {} from {}, which goes from {} only",
            number(), port_id_.text(), step, name_of(state_), name_of(before));
}

// ibv_modify_qp(3) lists what each of the three steps must set for reliable connections. The device
// refuses a step that sets more or less.

void QueuePair::to_init(const Connection& c) {
  expect(QueuePairState::kReset, "to INIT");
  port_id_.port = c.port;
  auto wanted = zeroed<ibv_qp_attr>();
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = c.port;
  wanted.pkey_index = c.partition_index;
  wanted.qp_access_flags = access_of(c.peer_may);
  int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
  check_zero(handle_.table().modify_qp(get(), &wanted, mask), "ibv_modify_qp(INIT)", port_id_);
  state_ = QueuePairState::kInit;
}

void QueuePair::to_ready_to_receive(const Connection& c) {
  expect(QueuePairState::kInit, "to RTR");
  port_id_.gid_index = c.global_route ? c.gid_index : -1;
  auto wanted = zeroed<ibv_qp_attr>();
  wanted.qp_state = IBV_QPS_RTR;
  wanted.ah_attr = path_of(c);
  wanted.path_mtu = mtu_of(c.path_mtu_bytes);
  wanted.dest_qp_num = c.remote_qp_num;
  wanted.rq_psn = c.remote_psn & kPsnMask;
  wanted.max_dest_rd_atomic = c.reads_in_flight;
  wanted.min_rnr_timer = c.receiver_not_ready_timer;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  check_zero(handle_.table().modify_qp(get(), &wanted, mask), "ibv_modify_qp(RTR)", port_id_);
  state_ = QueuePairState::kReadyToReceive;
}

void QueuePair::to_ready_to_send(const Connection& c) {
  expect(QueuePairState::kReadyToReceive, "to RTS");
  auto wanted = zeroed<ibv_qp_attr>();
  wanted.qp_state = IBV_QPS_RTS;
  wanted.sq_psn = c.local_psn & kPsnMask;
  wanted.timeout = c.timeout_exponent;
  wanted.retry_cnt = c.retries;
  wanted.rnr_retry = c.receiver_not_ready_retries;
  wanted.max_rd_atomic = c.reads_in_flight;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC;
  check_zero(handle_.table().modify_qp(get(), &wanted, mask), "ibv_modify_qp(RTS)", port_id_);
  state_ = QueuePairState::kReadyToSend;
}

bool QueuePair::to_error() noexcept {
  auto wanted = zeroed<ibv_qp_attr>();
  wanted.qp_state = IBV_QPS_ERR;
  int result = handle_.table().modify_qp(get(), &wanted, IBV_QP_STATE);
  if (result != 0) {
    log_warning("{} [{}]", errno_text("ibv_modify_qp(ERR)", error_of(result)), port_id_.text());
    return false;
  }
  state_ = QueuePairState::kError;
  return true;
}

QueuePairState QueuePair::query_state() const {
  auto now = zeroed<ibv_qp_attr>();
  auto made = zeroed<ibv_qp_init_attr>();
  check_zero(handle_.table().query_qp(get(), &now, IBV_QP_STATE, &made), "ibv_query_qp", port_id_);
  return state_of(now.qp_state);
}

// Requests are posted in chains: each call of the device rings its doorbell, a write over the bus
// that costs more than a request.
template <typename Request>
size_t QueuePair::try_post(std::span<const Request> wanted) {
  std::array<ibv_send_wr, kBatch> requests;
  size_t posted = 0;
  while (posted < wanted.size()) {
    size_t count = std::min(kBatch, wanted.size() - posted);
    for (size_t i = 0; i < count; i++) {
      fill(&requests[i], wanted[posted + i]);
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    int result = ibv_post_send(get(), requests.data(), &bad);
    size_t took = taken(result, "ibv_post_send", requests.data(), bad, count, port_id_);
    posted += took;
    if (took < count) break;
  }
  return posted;
}

size_t QueuePair::try_write(std::span<const Write> writes) { return try_post(writes); }
size_t QueuePair::try_read(std::span<const Read> reads) { return try_post(reads); }

size_t QueuePair::try_receive(uint64_t id, size_t count) {
  std::array<ibv_recv_wr, kBatch> requests;
  size_t posted = 0;
  while (posted < count) {
    // No memory: a write with immediate uses a receive only to notify.
    size_t batch = std::min(kBatch, count - posted);
    for (size_t i = 0; i < batch; i++)
      requests[i] = {id, i + 1 < batch ? &requests[i + 1] : nullptr, nullptr, 0};
    ibv_recv_wr* bad = nullptr;
    int result = ibv_post_recv(get(), requests.data(), &bad);
    size_t took = taken(result, "ibv_post_recv", requests.data(), bad, batch, port_id_);
    posted += took;
    if (took < batch) break;
  }
  return posted;
}

}  // namespace ringcoll::verbs
