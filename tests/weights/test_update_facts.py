"""What an update says of itself before it is applied."""

import numpy
from stores import Cluster, FakeFactory


def test_an_update_has_the_number_and_metadata_of_its_version_and_no_other():
    cluster = Cluster(FakeFactory(), ["a"])
    try:
        tensors = {"w": numpy.zeros(8, numpy.float32)}
        cluster.put_all(tensors)
        cluster.commit(metadata={"step": 1})
        guest = cluster.guest()
        with guest.prepare(out={"w": numpy.empty(8, numpy.float32)}) as update:
            cluster.put_all(tensors)
            cluster.commit(metadata={"step": 2})  # "latest" is another version from here on
            assert (update.version, update.metadata) == (1, {"step": 1})
    finally:
        cluster.close()
