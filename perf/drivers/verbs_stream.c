// The roofline of RDMA: both ranks write a buffer into the other's at the same time, in pieces, and
// nothing else. As many bytes pass in each direction as in a ring allreduce of two ranks, but
// nothing is added, packed or agreed: verbs_stream <harness socket> <ranks>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"

enum { kPieceBytes = 1 << 20, kInFlight = 16, kReceives = 16 };

// What the ranks tell each other, in memory that they share.
struct side {
  uint32_t qp_num, psn, rkey;
  uint64_t address;
  _Atomic uint64_t steps;
};

struct stream {
  int rank;
  struct side* sides;  // of both ranks
  uint64_t steps;
  struct ibv_context* context;
  struct ibv_pd* domain;
  struct ibv_cq* queue;
  struct ibv_qp* pair;
  int gid_index;
  struct ibv_port_attr port;
  const float* input;
  struct ibv_mr *from, *to;
  uint64_t arrived;  // buffers of the peer's that no call has taken yet: it may be one call ahead
};

// Both have come this far.
static void meet(struct stream* s) {
  atomic_store(&s->sides[s->rank].steps, ++s->steps);
  while (atomic_load(&s->sides[1 - s->rank].steps) < s->steps) continue;
}

static void barrier(void* state) { meet(state); }

static void* made(void* object, const char* what) {
  if (!object) fail("%s failed", what);
  return object;
}

static void done(int result, const char* what) {
  if (result != 0) fail("%s: %s", what, strerror(result));
}

static void register_buffers(struct stream* s, const float* input, float* output, size_t bytes) {
  if (s->from) done(ibv_dereg_mr(s->from), "ibv_dereg_mr");
  if (s->to) done(ibv_dereg_mr(s->to), "ibv_dereg_mr");
  s->input = input;
  s->from = made(ibv_reg_mr(s->domain, (void*)input, bytes, 0), "ibv_reg_mr");
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  s->to = made(ibv_reg_mr(s->domain, output, bytes, access), "ibv_reg_mr");
  struct side* mine = &s->sides[s->rank];
  mine->address = (uint64_t)(uintptr_t)output;
  mine->rkey = s->to->rkey;
  meet(s);
}

static void post_write(struct stream* s, size_t at, size_t bytes, int last) {
  const struct side* theirs = &s->sides[1 - s->rank];
  struct ibv_sge piece = {(uint64_t)(uintptr_t)s->input + at, (uint32_t)bytes, s->from->lkey};
  struct ibv_send_wr request = {.sg_list = &piece,
                                .num_sge = 1,
                                .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_SIGNALED,
                                .wr.rdma = {theirs->address + at, theirs->rkey}};
  struct ibv_send_wr* bad;
  done(ibv_post_send(s->pair, &request, &bad), "ibv_post_send");
}

static void post_receive(struct stream* s) {
  struct ibv_recv_wr request = {0}, *bad;
  done(ibv_post_recv(s->pair, &request, &bad), "ibv_post_recv");
}

// A call: all of the input to the peer's output, and all of the peer's here.
static void exchange(void* state, const float* input, float* output, int64_t count) {
  struct stream* s = state;
  size_t bytes = (size_t)count * sizeof *input, posted = 0;
  if (!s->to || s->to->addr != output || s->to->length != bytes || s->input != input)
    register_buffers(s, input, output, bytes);
  int in_flight = 0;
  while (posted < bytes || in_flight > 0 || s->arrived == 0) {
    while (posted < bytes && in_flight < kInFlight) {
      size_t piece = bytes - posted < kPieceBytes ? bytes - posted : kPieceBytes;
      post_write(s, posted, piece, posted + piece == bytes);
      posted += piece;
      in_flight++;
    }
    struct ibv_wc completion;
    int polled = ibv_poll_cq(s->queue, 1, &completion);
    if (polled < 0) fail("ibv_poll_cq failed");
    if (polled == 0) continue;
    if (completion.status != IBV_WC_SUCCESS)
      fail("a write failed: %s", ibv_wc_status_str(completion.status));
    if (completion.opcode & IBV_WC_RECV) {
      s->arrived++;
      post_receive(s);
    } else {
      in_flight--;
    }
  }
  s->arrived--;
}

// RoCE v2, an address that is not link-local if there is one; entry 0 of an InfiniBand port.
static int choose_gid(struct stream* s) {
  int chosen = 0;
  for (int i = 0; i < s->port.gid_tbl_len; i++) {
    struct ibv_gid_entry entry;
    if (ibv_query_gid_ex(s->context, 1, (uint32_t)i, &entry, 0) != 0) continue;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    chosen = i;
    if (entry.gid.raw[0] != 0xfe) break;
  }
  return chosen;
}

static void open_device(struct stream* s) {
  struct ibv_device** list = made(ibv_get_device_list(NULL), "ibv_get_device_list");
  if (!list[0]) fail("there is no RDMA device");
  s->context = made(ibv_open_device(list[0]), "ibv_open_device");
  ibv_free_device_list(list);
  done(ibv_query_port(s->context, 1, &s->port), "ibv_query_port");
  s->gid_index = choose_gid(s);
  s->domain = made(ibv_alloc_pd(s->context), "ibv_alloc_pd");
  s->queue =
      made(ibv_create_cq(s->context, 2 * (kInFlight + kReceives), NULL, NULL, 0), "ibv_create_cq");
  struct ibv_qp_init_attr attributes = {.send_cq = s->queue,
                                        .recv_cq = s->queue,
                                        .cap = {kInFlight, kReceives, 1, 1, 0},
                                        .qp_type = IBV_QPT_RC};
  s->pair = made(ibv_create_qp(s->domain, &attributes), "ibv_create_qp");
}

static void connect_pair(struct stream* s) {
  struct side *mine = &s->sides[s->rank], *theirs = &s->sides[1 - s->rank];
  mine->qp_num = s->pair->qp_num;
  mine->psn = 1000 + (uint32_t)s->rank;
  meet(s);
  struct ibv_qp_attr init = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  done(ibv_modify_qp(s->pair, &init,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
       "INIT");
  for (int i = 0; i < kReceives; i++) post_receive(s);
  struct ibv_qp_attr receive = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = s->port.active_mtu,
      .dest_qp_num = theirs->qp_num,
      .rq_psn = theirs->psn,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = 1,
                  .dlid = s->port.lid,
                  .grh = {.sgid_index = (uint8_t)s->gid_index, .hop_limit = 64}}};
  done(ibv_query_gid(s->context, 1, s->gid_index, &receive.ah_attr.grh.dgid), "ibv_query_gid");
  done(ibv_modify_qp(s->pair, &receive,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
       "RTR");
  struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                             .sq_psn = mine->psn,
                             .timeout = 17,
                             .retry_cnt = 6,
                             .rnr_retry = 7,
                             .max_rd_atomic = 1};
  done(ibv_modify_qp(s->pair, &send,
                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
       "RTS");
  meet(s);
}

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: %s <harness socket> <ranks>", argv[0]);
  parse_number(argv[2], 2, 2, "ranks");
  struct stream stream = {0};
  stream.sides = mmap(NULL, 2 * sizeof(struct side), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (stream.sides == MAP_FAILED) fail("no shared memory");
  stream.rank = fork_ranks(2);
  open_device(&stream);
  connect_pair(&stream);
  serve(&(struct peer){stream.rank, 2, 1, &stream, barrier, exchange}, argv[1]);
  join_ranks();
  return 0;
}
