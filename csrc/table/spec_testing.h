// Descriptions of tables. For tests.
#pragma once

#include <string>

#include "table/spec.h"

namespace ringcoll::testing {

/// A sparse table of rows with two elements. `fields` are added: R"(, "max_rows": 3)".
inline TableSpec sparse(const std::string& rule, const std::string& fields = "") {
  return TableSpec::parse(R"({"name": "t", "dtype": "float32", "row_shape": [2], "rule": )" + rule +
                          fields + "}");
}

}  // namespace ringcoll::testing
