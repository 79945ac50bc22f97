"""What perf/allreduce.py and perf/horovod.py share: jobs, peers, statistics, reports."""
