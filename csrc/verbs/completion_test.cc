#include "verbs/completion.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

namespace ringcoll::verbs {
namespace {

ibv_wc entry(ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = 42;
  wc.status = status;
  wc.qp_num = 0x11;
  wc.vendor_err = 0x81;
  return wc;
}

TEST(Completion, OfAReceiveHasBytesAndImmediate) {
  ibv_wc wc = entry(IBV_WC_SUCCESS);
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = 4096;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm_data = htonl(0x12345678);
  Completion completion(wc);
  EXPECT_TRUE(completion.ok());
  EXPECT_EQ(completion.id(), 42u);
  EXPECT_EQ(completion.operation(), Operation::kReceiveImmediate);
  EXPECT_EQ(completion.bytes(), 4096u);
  EXPECT_EQ(completion.immediate(), 0x12345678u);
}

TEST(Completion, OfAWriteHasNoBytesAndNoImmediate) {
  ibv_wc wc = entry(IBV_WC_SUCCESS);
  wc.opcode = IBV_WC_RDMA_WRITE;
  Completion completion(wc);
  EXPECT_EQ(completion.operation(), Operation::kWrite);
  EXPECT_THROW((void)completion.bytes(), Error);
  EXPECT_THROW((void)completion.immediate(), Error);
}

TEST(Completion, OfAFailureAnswersOnlyWhatIsValid) {
  ibv_wc wc = entry(IBV_WC_RETRY_EXC_ERR);
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;  // left over in the device's memory
  wc.byte_len = 4096;
  Completion completion(wc);
  EXPECT_FALSE(completion.ok());
  EXPECT_EQ(completion.id(), 42u);
  EXPECT_EQ(completion.status(), Status::kRetryExceeded);
  EXPECT_EQ(completion.qp_num(), 0x11u);
  EXPECT_EQ(completion.vendor_error(), 0x81u);
  EXPECT_THROW((void)completion.operation(), Error);
  EXPECT_THROW((void)completion.bytes(), Error);
  EXPECT_THROW((void)completion.immediate(), Error);
}

TEST(Completion, TextNamesStatusCauseAndSeconds) {
  std::string text = Completion(entry(IBV_WC_RETRY_EXC_ERR)).text(3.76);
  for (const char* part : {"retry exceeded", "vendor error 0x81", "queue pair 0x11", "cable",
                           "RINGCOLL_QP_TIMEOUT", "at least 3.8 s"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Completion, EveryStatusOfALibraryIsExplained) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++) {
    Completion completion(entry(static_cast<ibv_wc_status>(status)));
    EXPECT_FALSE(completion.ok()) << status;
    EXPECT_GT(explain(completion.status()).size(), 10u) << status;
  }
  EXPECT_NE(explain(Status::kFlushed).find("first"), std::string::npos);
  EXPECT_NE(explain(Status::kReceiverNotReady).find("receive"), std::string::npos);
  EXPECT_NE(explain(Status::kRemoteAccess).find("registered"), std::string::npos);
  EXPECT_STREQ(name_of(Status::kLocalProtection), "local protection error");
}

}  // namespace
}  // namespace ringcoll::verbs
