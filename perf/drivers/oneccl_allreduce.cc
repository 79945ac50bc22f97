// oneCCL on the CPU, started by Intel MPI's launcher: oneccl_allreduce <harness socket>
#include <mpi.h>

#include <exception>
#include <oneapi/ccl.hpp>

#include "bench.h"

namespace {

ccl::communicator& communicator(void* state) { return *static_cast<ccl::communicator*>(state); }

void barrier(void* state) { ccl::barrier(communicator(state)).wait(); }

void allreduce(void* state, const float* input, float* output, int64_t count) {
  ccl::allreduce(input, output, static_cast<size_t>(count), ccl::reduction::sum,
                 communicator(state))
      .wait();
}

ccl::shared_ptr_class<ccl::kvs> share_store(int rank) {
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  return rank == 0 ? store : ccl::create_kvs(address);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage: mpirun ... %s <harness socket>", argv[0]);
  MPI_Init(&argc, &argv);
  try {
    ccl::init();
    peer peer = {0, 0, 0, nullptr, barrier, allreduce, 0, nullptr};
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    ccl::communicator comm = ccl::create_communicator(peer.size, peer.rank, share_store(peer.rank));
    peer.state = &comm;
    serve(&peer, argv[1]);
  } catch (const std::exception& e) {
    fail("oneCCL: %s", e.what());
  }
  MPI_Finalize();
  return 0;
}
