#include "verbs/breaker_testing.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "verbs/table.h"

namespace ringcoll::verbs {

// The table in force, with two functions that go by the list of queue pairs.
struct QueuePairBreaker::State {
  State() : below(verbs::table()), table(below) {
    current = this;
    table.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* wanted) {
      return current->create(pd, wanted);
    };
    table.destroy_qp = [](ibv_qp* pair) { return current->destroy(pair); };
    installed = std::make_unique<ScopedTable>(table);
  }

  ibv_qp* create(ibv_pd* pd, ibv_qp_init_attr* wanted) {
    ibv_qp* made = below.create_qp(pd, wanted);
    std::lock_guard lock(mutex);
    if (made) pairs.push_back(made);
    return made;
  }
  int destroy(ibv_qp* pair) {
    {
      std::lock_guard lock(mutex);
      std::erase(pairs, pair);
    }
    return below.destroy_qp(pair);
  }

  static inline State* current = nullptr;
  const Table& below;
  Table table;
  std::mutex mutex;
  std::vector<ibv_qp*> pairs;
  std::unique_ptr<ScopedTable> installed;
};

QueuePairBreaker::QueuePairBreaker() : state_(std::make_unique<State>()) {}
QueuePairBreaker::~QueuePairBreaker() = default;

size_t QueuePairBreaker::queue_pairs() const {
  std::lock_guard lock(state_->mutex);
  return state_->pairs.size();
}

bool QueuePairBreaker::break_oldest() {
  std::lock_guard lock(state_->mutex);  // so that it is not destroyed meanwhile
  if (state_->pairs.empty()) return false;
  auto attributes = zeroed<ibv_qp_attr>();
  attributes.qp_state = IBV_QPS_ERR;
  return state_->below.modify_qp(state_->pairs.front(), &attributes, IBV_QP_STATE) == 0;
}

}  // namespace ringcoll::verbs
