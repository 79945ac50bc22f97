// The table of schedules: a new one is a file, its declaration in families.h, and a row here.
#include <array>

#include "schedule/families.h"

namespace ringcoll {

// Of each collective the first row is the one to take where nothing is known of costs.
std::span<const ScheduleRow> schedules() {
  static const std::array kRows = {
      allreduce_ring(),
      allreduce_recursive_doubling(),
      allreduce_halving_doubling(),
      allreduce_direct(),
      reduce_scatter_ring(),
      reduce_scatter_direct(),
      allgather_ring(),
      allgather_direct(),
      broadcast_binomial(),
      broadcast_scatter_allgather(),
      broadcast_direct(),
      reduce_binomial(),
      reduce_scatter_gather(),
      gather_direct(),
      scatter_direct(),
      alltoall_direct(),
      barrier_dissemination(),
  };
  return kRows;
}

const ScheduleRow* find_schedule(Collective collective, std::string_view name) {
  for (const ScheduleRow& row : schedules())
    if (row.collective == collective && row.name == name) return &row;
  return nullptr;
}

}  // namespace ringcoll
