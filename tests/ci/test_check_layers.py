"""ci/check_layers.py on small trees: what it must find, and what it must let pass."""

import check_layers
import pytest


@pytest.fixture
def tree(tmp_path):
    """Makes a file of the tree, and an empty one for each header it includes by a relative path."""

    def write(name, *lines):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    write("csrc/include/ringcoll/ringcoll.h", "#include <stdint.h>")
    write("csrc/base/types.h", '#include "ringcoll/ringcoll.h"')
    write("csrc/base/collectives.h", '#include "base/types.h"')
    write("csrc/base/traits.h", '#include "base/collectives.h"')
    for layer in (
        "base",
        "net",
        "shm",
        "verbs",
        "transport",
        "comm",
        "schedule",
        "coll",
        "p2p",
        "delta",
        "rules",
        "table",
    ):
        write(f"csrc/{layer}/{layer}.h", "#pragma once")
    for name in ("shm", "tcp"):
        write(f"csrc/transport/{name}/{name}.h", '#include "transport/transport.h"')
    write.root = tmp_path
    return write


def test_arrows_down_pass(tree):
    tree("csrc/comm/a.cc", '#include "comm/comm.h"', '#include "transport/transport.h"')
    tree("csrc/coll/a.cc", '#include "schedule/schedule.h"', "#include <vector>")
    tree("csrc/delta/a.cc", '#include "reduce/reduce.h"', "#include <xxhash.h>")
    tree("csrc/rules/a.cc", '#include "reduce/reduce.h"', '#include "base/types.h"')
    tree("csrc/table/a.cc", '#include "rules/rules.h"', '#include "reduce/reduce.h"')
    tree("csrc/engine/a.cc", '#include "rules/rules.h"', '#include "table/table.h"')
    tree("csrc/reduce/reduce.h", '#include "base/types.h"')
    tree("csrc/transport/registry.cc", '#include "transport/tcp/tcp.h"')
    assert check_layers.violations(tree.root) == []


@pytest.mark.parametrize(
    ("file", "include", "why"),
    [
        ("csrc/base/a.cc", '"comm/comm.h"', "base/ may not include comm/"),
        ("csrc/base/a_test.cc", '"net/net.h"', "base/ may not include net/"),
        ("csrc/net/a.h", '"shm/shm.h"', "net/ may not include shm/"),
        ("csrc/reduce/a.cc", '"delta/delta.h"', "reduce/ may not include delta/"),
        ("csrc/delta/a.cc", '"schedule/schedule.h"', "delta/ may not include schedule/"),
        ("csrc/rules/a.cc", '"delta/delta.h"', "rules/ may not include delta/"),
        ("csrc/coll/a.cc", '"rules/rules.h"', "coll/ may not include rules/"),
        ("csrc/rules/a.cc", '"table/table.h"', "rules/ may not include table/"),
        ("csrc/table/a.cc", '"delta/delta.h"', "table/ may not include delta/"),
        ("csrc/coll/a.cc", '"delta/delta.h"', "coll/ may not include delta/"),
        ("csrc/schedule/ring.cc", '"comm/comm.h"', "schedule/ may not include comm/"),
        ("csrc/comm/a.cc", '"coll/coll.h"', "comm/ may not include coll/"),
        ("csrc/p2p/a.cc", '"coll/coll.h"', "p2p/ may not include coll/"),
        ("csrc/coll/a.cc", '"p2p/p2p.h"', "coll/ may not include p2p/"),
        ("csrc/python/a.cc", '"coll/coll.h"', "python/ may not include coll/"),
        ("csrc/python/a.cc", '"base/base.h"', "python/ may not include base/"),
        ("csrc/transport/tcp/a.cc", '"transport/shm/shm.h"', "may not include another transport"),
        ("csrc/mesh/a.cc", '"base/collectives.h"', "carries bytes"),
        ("csrc/transport/tcp/a.h", '"base/traits.h"', '"base/traits.h" brings base/collectives.h'),
        ("csrc/comm/a.cc", '"gone.h"', "is no file of csrc/"),
        ("csrc/include/ringcoll/more.h", '"base/base.h"', "the installed headers stand alone"),
        ("csrc/extra/a.cc", "<vector>", "extra/ is no layer"),
        ("csrc/transport/a.cc", "<infiniband/verbs.h>", "only csrc/verbs/"),
        ("csrc/engine/a.cc", "<pybind11/pybind11.h>", "only csrc/python/"),
        ("csrc/coll/a.cc", "<hwy/highway.h>", "only csrc/reduce/ and csrc/rules/ may"),
        ("csrc/comm/a.cc", "<sodium.h>", "only csrc/connect/"),
        ("csrc/engine/a.cc", "<xxhash.h>", "only csrc/delta/"),
        ("csrc/engine/a.cc", '"horovod/common/common.h"', "only compat/horovod/"),
        ("compat/horovod/a.cc", '"comm/comm.h"', "compat/ sees ringcoll by ringcoll/ringcoll.h"),
    ],
)
def test_a_violation_is_found_and_named(tree, file, include, why):
    tree(file, "// a comment", f"#include {include}")
    found = check_layers.violations(tree.root)
    assert len(found) == 1
    assert found[0].startswith(file)
    assert why in found[0]


@pytest.mark.parametrize("layer", sorted(check_layers.CARRIERS))
@pytest.mark.parametrize(
    "line",
    [
        "size_t bytes_of(DataType dtype);",
        "bool is_sum(const ReduceOp& op);",
        "std::vector<Collective> all;",
        "if (call.dtype == RC_FLOAT32) return;",
        "rc_dtype dtype = RC_BFLOAT16;",
    ],
)
def test_who_carries_bytes_does_not_know_what_they_are(tree, layer, line):
    comment = "// Collective over all ranks, whatever DataType they have."
    tree(f"csrc/{layer}/a.cc", comment, '#include "base/types.h"', "Rank rank;  // a DataType")
    tree("csrc/coll/a.cc", '#include "base/collectives.h"', line)
    assert check_layers.violations(tree.root) == []
    tree(f"csrc/{layer}/b_test.cc", comment, line)
    (found,) = check_layers.violations(tree.root)
    assert found.startswith(f"csrc/{layer}/b_test.cc:2: {layer}/ carries bytes and does not know")


def test_who_carries_bytes_is_below_the_calls():
    assert {"coll", "engine", *check_layers.PURE}.isdisjoint(check_layers.CARRIERS)
    below = check_layers.allowed_layers("coll") - {"coll", "base", *check_layers.PURE}
    assert below | {"p2p"} == check_layers.CARRIERS


def test_the_front_may_see_what_collectives_are(tree):
    tree("csrc/base/collectives.h", "")
    tree("csrc/python/a.cc", '#include "base/collectives.h"')
    assert check_layers.violations(tree.root) == []


def test_owners_may(tree):
    tree("csrc/verbs/a.h", "#include <infiniband/verbs.h>")
    tree("csrc/python/a.cc", "#include <pybind11/pybind11.h>", '#include "ringcoll/ringcoll.h"')
    tree("csrc/reduce/a-inl.h", "#include <hwy/highway.h>", '#include "hwy/foreach_target.h"')
    tree("csrc/rules/a.cc", "#include <hwy/highway.h>", '#include "reduce/a-inl.h"')
    tree("compat/horovod/a.cc", '#include "horovod/common/common.h"')
    assert check_layers.violations(tree.root) == []


def test_a_header_belongs_to_the_owner_of_what_it_includes(tree):
    tree("csrc/verbs/table.h", "#include <infiniband/verbs.h>")
    tree("csrc/verbs/inner.h", '#include "verbs/table.h"')
    tree("csrc/verbs/handles.cc", '#include "verbs/inner.h"')
    tree("csrc/verbs/handles.h", "struct ibv_qp;")
    tree("csrc/transport/verbs/good.cc", '#include "verbs/handles.h"')
    assert check_layers.violations(tree.root) == []
    tree("csrc/transport/verbs/bad.cc", '#include "verbs/inner.h"')
    found = check_layers.violations(tree.root)
    assert len(found) == 1
    assert "csrc/transport/verbs/bad.cc:1" in found[0]
    assert "only csrc/verbs/ may include it" in found[0]
