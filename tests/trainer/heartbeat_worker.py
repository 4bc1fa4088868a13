"""One rank of two: beats, says so, and waits in native code as one does that waits for a lost rank in a CUDA kernel.

Arguments: rank, file by which the ranks find each other, and ``hang`` or ``end``.
"""

import ctypes
import sys

import torch.distributed as dist
from neuroshard_trainer.heartbeat import Heartbeat

rank, meeting_file, behavior = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=int(rank), world_size=2)
with Heartbeat(lambda: "after step 7"):
    print("beats", flush=True)  # noqa: T201 - the test waits for it
    if behavior == "hang":
        ctypes.CDLL(None).pause()
