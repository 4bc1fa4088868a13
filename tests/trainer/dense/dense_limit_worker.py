"""Ranks whose memory is limited to what a plan's ledger says, and a margin for what it does not count.

Arguments: folder, bytes that a rank may allocate after it has joined the others, and files of a job and of its plan.
"""

import ctypes
import json
import logging
import re
import resource
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.ranks.process import Process, new_group
from neuroshard_trainer.run import RunPaths, set_up
from support.trainer.rank_server import joined_ranks

M_MMAP_THRESHOLD = -3
"""mallopt's number in glibc's malloc.h."""
LARGEST_OF_HEAP = 2**20


def main(folder: str, most_bytes: int, job_file: str, plan_file: str) -> None:
    """Train the job under the limit; rank 0 writes what it has trained to FOLDER/trained.json."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        process = Process(
            rank=dist.get_rank(), world_size=dist.get_world_size(), device=torch.device("cpu"), group=new_group(60)
        )
        # Larger blocks go back to the kernel when they are freed; otherwise glibc keeps up to 32 MiB of each in a heap
        assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGEST_OF_HEAP)
        limit = present_bytes() + most_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        run_dir = Path(folder, "run")
        run_dir.mkdir(exist_ok=True)
        plan = GivenPlan.read(Path(plan_file))
        places = RunPaths(plan_file=Path(plan_file), run_dir=run_dir, data_dir=Path(folder))
        loop = set_up(read_job(Path(job_file)), plan, places, process)
        loop.run()
        if process.is_first:
            Path(folder, "trained.json").write_text(json.dumps({"step": loop.step}))


def present_bytes() -> int:
    """Return the private writable memory of this process, which is what the limit is on."""
    found = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
