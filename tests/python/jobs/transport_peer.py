"""An endpoint of torch's one-sided transports in a process of its own: argv is the folder that has
torch 2.15's package, or "". Says the URL and the remote buffer of an int64 tensor, in hexadecimal;
then answers lines: "connect URL", "sum", "quit"."""

from __future__ import annotations

import sys

import torch
import torch.distributed

if sys.argv[1]:
    torch.distributed.__path__.append(sys.argv[1])

from torch.distributed._transport import new_transport

tensor = torch.arange(1 << 18)
with new_transport("ringcoll", "cpu") as transport:
    url = transport.bind()
    buffer = transport.register_memory(tensor).to_remote_buffer()
    print(url.hex(), buffer.serialize().hex(), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "connect":
            print(transport.connect(bytes.fromhex(rest[0])), flush=True)
        elif word == "sum":
            print(int(tensor.sum()), flush=True)
        elif word == "quit":
            break
