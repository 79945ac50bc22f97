"""``ringcoll doctor`` under horovodrun: its ranks meet at the rendezvous server."""


def test_doctor_meets_at_the_rendezvous_server(start):
    done = start("command.py", "doctor", np=2).wait()
    assert done.status == 0, done.output
    # Once, by rank 0, with the ranks of this host in a row.
    assert done.output.count("All hosts are well.") == 1, done.output
    assert "horovodrun: rank 0 of 2, store horovod://" in done.output
    assert "0 to 1" in done.output
