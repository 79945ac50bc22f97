"""hvd.init() with a process set that each rank names differently: no rank gets it.

Arguments: the folder for the results; the members that each rank names, as "0,1 0,1 0,2".
"""

import os
import sys

import horovod.torch as hvd
import results

rank = int(os.environ["HOROVOD_RANK"])
members = [int(member) for member in sys.argv[2].split()[rank].split(",")]
try:
    hvd.init(process_sets=[hvd.ProcessSet(members)])
    refused = ""
except ValueError as error:
    refused = str(error)
results.write(rank, refused=refused)
