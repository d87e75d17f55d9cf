"""w7: bytes of an idle stream, measured in a process of its own. glibc only."""

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

from data import Data
from peers import ADAPTERS
from peers.peer import Peer, Skip
from vocabs import Vocab
from workloads import Sample

PROMPT = 4096


MALLINFO2 = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def w7(peer: Peer, data: Data) -> dict[str, Sample]:
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        raise Skip("needs glibc 2.33")
    command = [sys.executable, str(Path(__file__)), peer.name, data.vocab.family]
    # Python's own allocator off, so that the C heap has everything.
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PYTHONMALLOC": "malloc"}
    )
    opened, stepped = json.loads(done.stdout.splitlines()[-1])
    return {"opened": Sample(opened, "bytes"), "after a token": Sample(stepped, "bytes")}


def in_use() -> int:
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo2
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


def child(name: str, family: str) -> tuple[float, float]:
    data = Data(Vocab(family))
    peer = ADAPTERS[name](data.vocab)
    prompt, ids = data.long_prompt(PROMPT)
    warm = peer.open(prompt)
    for i in ids[:3]:
        peer.step(warm, i)
    count = peer.most_streams
    streams = [None] * count
    before = in_use()
    for k in range(count):
        streams[k] = peer.open(prompt)
    opened = in_use()
    for stream in streams:
        peer.step(stream, ids[0])
    return (opened - before) / count, (in_use() - before) / count


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
