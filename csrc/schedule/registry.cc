// The table of schedules. docs/contributing.md shows how to add one.
#include <array>

#include "schedule/families.h"

namespace ringcoll {

// If no row of a collective has a price, its first row that is offered anywhere is chosen.
std::span<const ScheduleRow> schedules() {
  static const std::array kRows = {
      allreduce_ring(),
      allreduce_recursive_doubling(),
      allreduce_halving_doubling(),
      allreduce_direct(),
      allreduce_one_shot(),
      allreduce_direct_ring(),
      allreduce_direct_halving_doubling(),
      allreduce_direct_recursive_doubling(),
      allreduce_binomial_recursive_doubling(),
      reduce_scatter_ring(),
      reduce_scatter_halving(),
      reduce_scatter_direct(),
      reduce_scatter_direct_ring(),
      reduce_scatter_binomial_halving(),
      allgather_ring(),
      allgather_doubling(),
      allgather_direct(),
      allgather_direct_ring(),
      allgather_binomial_doubling(),
      broadcast_binomial(),
      broadcast_chain(),
      broadcast_scatter_allgather(),
      broadcast_direct(),
      broadcast_direct_chain(),
      broadcast_binomial_binomial(),
      reduce_binomial(),
      reduce_chain(),
      reduce_scatter_gather(),
      reduce_direct_chain(),
      reduce_binomial_binomial(),
      gather_direct(),
      gather_binomial(),
      scatter_direct(),
      scatter_binomial(),
      alltoall_direct(),
      alltoall_direct_direct(),
      barrier_dissemination(),
      barrier_binomial_dissemination(),
      scan_chain(),
      scan_recursive_doubling(),
      exscan_chain(),
      exscan_recursive_doubling(),
  };
  return kRows;
}

const ScheduleRow* find_schedule(Collective collective, std::string_view name) {
  for (const ScheduleRow& row : schedules())
    if (row.collective == collective && row.name == name) return &row;
  return nullptr;
}

}  // namespace ringcoll
