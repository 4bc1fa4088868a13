"""Training loops that take turns step by step on two processes: their plan, their start, and the time of a step."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from neuroshard_api.documents.tables import TableSet
from neuroshard_trainer.data.batches import Batch

from benchmarks.sharded_training import BATCH_SIZE, BY_COLUMNS, WORLD_SIZE, torchrun

PLAN_FILE, BLOCKS_FILE = "plan.json", "blocks.json"
"""Files of the folder that a script's processes are given: what they train under, and what rank 0 measured."""
Step = Callable[[Batch], None]
Times = tuple[float, float]
"""Milliseconds of a step by the clock and of the processor."""


def measured_blocks(script: Path, tables: TableSet, *arguments: str) -> Any:  # noqa: ANN401 - what the script wrote as JSON
    """Plan the tables, run a script on two processes, and return what rank 0 measured.

    The script's first argument is a folder with the plan, and for what is measured; ``arguments`` follow.
    """
    from neuroshard_api.documents.request import Constraints, PlanRequest  # noqa: PLC0415 - of this process alone, not of those that train
    from neuroshard_api.documents.topology import Link, Topology  # noqa: PLC0415
    from neuroshard_costs.bundle import bundled_bundle  # noqa: PLC0415
    from neuroshard_planner.pipeline import plan  # noqa: PLC0415

    bundle = bundled_bundle("h100-80gb")
    link = Link(bandwidth_bytes_per_second=1e11, latency_seconds=1e-5)
    topology = Topology(devices_per_node=WORLD_SIZE, device=bundle.manifest.device, intra_node=link, inter_node=link)
    request = PlanRequest(
        tables=tables,
        topology=topology,
        batch_size_per_device=BATCH_SIZE,
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / PLAN_FILE).write_text(plan(request, bundle=bundle).to_json())
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *torchrun(script, scratch, *arguments)], check=True, env=environment)  # noqa: S603
        return json.loads((Path(scratch) / BLOCKS_FILE).read_text())


def timed(step: Step, batch: Batch) -> Times:
    """Return milliseconds of a step: by the clock, and of this process's processor time, all its threads."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    step(batch)
    return 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processor)
