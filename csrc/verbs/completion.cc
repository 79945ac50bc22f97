#include "verbs/completion.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <iterator>

namespace ringcoll::verbs {
namespace {

struct Pair {
  ibv_wc_status theirs;
  Status ours;
};

constexpr Pair kStatuses[] = {
    {IBV_WC_LOC_LEN_ERR, Status::kLocalLength},
    {IBV_WC_LOC_QP_OP_ERR, Status::kLocalOperation},
    {IBV_WC_LOC_PROT_ERR, Status::kLocalProtection},
    {IBV_WC_WR_FLUSH_ERR, Status::kFlushed},
    {IBV_WC_BAD_RESP_ERR, Status::kBadResponse},
    {IBV_WC_LOC_ACCESS_ERR, Status::kLocalAccess},
    {IBV_WC_REM_INV_REQ_ERR, Status::kRemoteInvalidRequest},
    {IBV_WC_REM_ACCESS_ERR, Status::kRemoteAccess},
    {IBV_WC_REM_OP_ERR, Status::kRemoteOperation},
    {IBV_WC_RETRY_EXC_ERR, Status::kRetryExceeded},
    {IBV_WC_RNR_RETRY_EXC_ERR, Status::kReceiverNotReady},
    {IBV_WC_REM_ABORT_ERR, Status::kRemoteAborted},
    {IBV_WC_FATAL_ERR, Status::kFatal},
    {IBV_WC_RESP_TIMEOUT_ERR, Status::kResponseTimeout},
    {IBV_WC_GENERAL_ERR, Status::kGeneral},
};

Status status_of(ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS) return Status::kSuccess;
  auto found = std::ranges::find(kStatuses, status, &Pair::theirs);
  return found == std::end(kStatuses) ? Status::kOther : found->ours;
}

Operation operation_of(ibv_wc_opcode opcode) {
  switch (opcode) {
    case IBV_WC_RDMA_WRITE:
      return Operation::kWrite;
    case IBV_WC_RDMA_READ:
      return Operation::kRead;
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return Operation::kReceiveImmediate;
    case IBV_WC_RECV:
      return Operation::kReceive;
    default:
      return Operation::kOther;
  }
}

struct StatusWords {
  const char* name;
  const char* cause;
};

// In the order of Status.
constexpr StatusWords kStatusWords[] = {
    {"success", "the peer has the bytes"},
    {"local length error",
     "the message is longer than the port allows, or than the receive that it met"},
    {"local operation error",
     "this end could not send: its interface is down or has lost its address or its route "
     "(Soft-RoCE "
     "gives up at once then), or the work request does not suit its queue pair, a defect of "
     "ringcoll"},
    {"local protection error",
     "the memory to send from or to receive into is not registered, or was unregistered or "
     "remapped while in use"},
    {"flushed",
     "the queue pair was in the error state, and this only follows: look for the first error, here "
     "or at the peer. Where nothing else failed, the peer tried to reach memory that it was not "
     "granted, or the queue pair was driven there from outside"},
    {"bad response", "the peer answered something unexpected: firmware, or two jobs mixed up"},
    {"local access error", "the peer wrote where this rank did not allow it"},
    {"remote invalid request",
     "the peer refused the request: its queue pair does not allow writes, or the two ends have "
     "different path MTUs. Compare the MTUs of both ports"},
    {"remote access error",
     "the peer's memory is not registered there: wrong key or bounds, or the peer has unregistered "
     "it (it may have ended)"},
    {"remote operation error", "the peer's device could not carry the request out; see its log"},
    {"retry exceeded",
     "the peer's device did not answer: the peer or its host is gone, the cable or switch port is "
     "down, packets are lost (RoCE without flow control), or the GIDs do not reach each other "
     "(RINGCOLL_GID_INDEX). RINGCOLL_QP_TIMEOUT and RINGCOLL_QP_RETRIES say how long it tries"},
    {"receiver not ready",
     "the peer had no receive posted in all of the retries: a rank that is stopped, or a defect of "
     "the credits"},
    {"remote aborted", "the peer's device gave the operation up"},
    {"fatal error", "the device failed; see the kernel log (dmesg)"},
    {"response timeout", "the peer's device answered too late"},
    {"general error", "the device failed in a way of its own; the vendor error says more"},
    {"unknown error", "a status that a connected queue pair should not give"},
};
static_assert(std::size(kStatusWords) == static_cast<size_t>(Status::kOther) + 1);

const StatusWords& words_of(Status status) {
  return kStatusWords[std::min(static_cast<size_t>(status), std::size(kStatusWords) - 1)];
}

}  // namespace

const char* name_of(Status status) { return words_of(status).name; }

std::string explain(Status status, double retry_seconds) {
  bool tried = status == Status::kRetryExceeded && retry_seconds > 0;
  std::string tail = tried ? fmt::format(" (at least {:.1f} s)", retry_seconds) : "";
  return words_of(status).cause + tail;
}

Completion::Completion(const ibv_wc& wc)
    : id_(wc.wr_id),
      qp_num_(wc.qp_num),
      vendor_error_(wc.vendor_err),
      status_(status_of(wc.status)) {
  if (!ok()) return;
  operation_ = operation_of(wc.opcode);
  bytes_ = wc.byte_len;
  immediate_ = (wc.wc_flags & IBV_WC_WITH_IMM) ? ntohl(wc.imm_data) : 0;
}

std::string Completion::text(double retry_seconds) const {
  if (ok()) return fmt::format("success (queue pair {:#x})", qp_num_);
  return fmt::format("{} (vendor error {:#x}, queue pair {:#x}): {}", name_of(status_),
                     vendor_error_, qp_num_, explain(status_, retry_seconds));
}

}  // namespace ringcoll::verbs
