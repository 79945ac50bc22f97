"""How peers are started on emulated hosts."""

from harness import cluster_peers, peers
from harness.figures import OURS
from harness.jobs import Spec


def test_where_racks_are_is_told_to_the_library_before_too() -> None:
    specs = [Spec(name, []) for name in (OURS, peers.BEFORE, "gloo")]
    told = {"RINGCOLL_TOPOLOGY": "file"}
    cluster_peers.tell(specs, told)
    assert [spec.environment for spec in specs] == [told, told, {}]
