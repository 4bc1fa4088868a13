"""One of two ranks: trains, and computes 30 ms before each of its lookups if it is the second."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_trainer.measure.step_reporter import StepReporter
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import plan_of, write_plan
from support.trainer.trainer_models import lookups_of_zero, sharded_model

SAMPLES = 64
LATE_S = 0.03


def main(folder: str) -> None:
    """Write the report of both ranks' exchange of indices, the first after the dense part, to ``folder``."""
    with joined_ranks():
        reports: list[StepReport] = []
        plan = plan_of(world_size=2)
        model = sharded_model(dist.group.WORLD, plan)
        own = Path(folder, f"rank-{dist.get_rank()}")
        own.mkdir()
        reporter = StepReporter(model, write_plan(own, plan), write=reports.append, report_every=10)
        if dist.get_rank() == 1:
            model.module.dense_arch.register_forward_hook(_compute)
        for dense, lookups in reporter.steps([(torch.zeros(SAMPLES, 3), lookups_of_zero(SAMPLES))] * 10):
            torch.autograd.backward(model(dense, lookups).sum())
        if reports:
            exchanges = [
                next(each for each in times.collectives if each.kind is CollectiveKind.INDICES)
                for times in reports[-1].ranks
            ]
            found = [each.model_dump(mode="json") for each in exchanges]
            Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")


def _compute(*_: object) -> None:
    until = time.perf_counter() + LATE_S
    while time.perf_counter() < until:
        pass
