"""Tensors with names of every kind, while the timeline is on.

Argument: the folder for the results.
"""

import os

import horovod.torch as hvd
import results
import torch

NAMES = [
    'a "quoted" one',
    "back\\slash",
    "\\",
    "tab\tline\nreturn\rform\f",
    *(f"control {chr(code)}" for code in range(1, 32)),
    "delete \x7f",
    "words of Ümläute, 漢字 and 🙂",
    '{"name": "JSON"}, [',
    "</script>",
]
os.environ["HOROVOD_TIMELINE"] = str(results.FOLDER / "timeline.json")
hvd.init()
for name in NAMES:
    hvd.allreduce(torch.ones(1), name=name)
hvd.grouped_allreduce([torch.ones(1)] * 2, name='"group"')
hvd.broadcast(torch.ones(1), 0, name='"root"')
rank = hvd.rank()
hvd.shutdown()
results.write(rank, names=NAMES)
