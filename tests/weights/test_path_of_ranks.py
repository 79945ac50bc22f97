"""Ranks that open a store with the same path."""

import numpy
from stores import Cluster, FakeFactory, wait_until


def test_the_first_rank_of_a_host_keeps_the_files_for_all_that_name_the_folder(tmp_path):
    cluster = Cluster(FakeFactory(), ["a", "a"], path=tmp_path / "files")
    try:
        cluster.put_all({"w": numpy.arange(4.0)})
        version = cluster.commit()
        latest = tmp_path / "files" / "latest"
        wait_until(lambda: latest.is_symlink() and latest.readlink().name == str(version))
        assert numpy.load(latest / "w.npy").tolist() == [0, 1, 2, 3]
    finally:
        cluster.close()
