"""Two ranks that beat; one is lost, the other waits in native code as for a lost rank in a CUDA kernel."""

import ctypes
import os
import time
from pathlib import Path

import torch.distributed as dist
from neuroshard_trainer.ranks.heartbeat import Heartbeat
from support.trainer.rank_server import joined_ranks, shorten_heartbeat

POLL_S = 0.01


def lose(folder: str, lost: int, number: int) -> None:
    """Beat; the lost rank sends itself the signal once the other one waits, and writes down when."""
    shorten_heartbeat()
    waits, lost_file = Path(folder, "waits"), Path(folder, "lost")
    dist.init_process_group("gloo")
    with Heartbeat(lambda: "after step 7"):
        if dist.get_rank() == lost:
            while not waits.exists():
                time.sleep(POLL_S)
            lost_file.write_text(str(time.time()))
            os.kill(os.getpid(), number)
        waits.touch()
        ctypes.CDLL(None).pause()


def end() -> None:
    """Beat, and leave together."""
    with joined_ranks(), Heartbeat(lambda: "after step 7"):
        pass
