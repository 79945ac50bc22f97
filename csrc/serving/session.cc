#include "serving/session.h"

namespace ringcoll::serving {

Session::~Session() {
  if (current && current->load) agent.cancel(current->load);
  for (const auto& answer : answers)
    if (answer->rows) agent.cancel(answer->rows);
}

}  // namespace ringcoll::serving
