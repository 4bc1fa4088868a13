"""Runs of a small job by ``neuroshard run``, with a script as its trainer, and plans for them."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from neuroshard_api.documents.request import Constraints, SearchSettings
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_root, load_bundle
from neuroshard_planner.pipeline import plan as search
from support import builders
from support.cli.searches import QUICK_WORK

BUNDLED = {"policy": "Never", "deviceType": "h100-80gb"}
TRAINER = """
import hashlib, os, pathlib, sys
run_dir = pathlib.Path(os.environ["NEUROSHARD_RUN_DIR"])
plan = pathlib.Path(os.environ["NEUROSHARD_PLAN"]).read_bytes()
(run_dir / "starts").open("a").write(os.environ["PET_NPROC_PER_NODE"] + " " + os.environ.get("GIVEN", "") + "\\n")
report = (run_dir.parent.parent / "report.json").read_text()
(run_dir / "step-report.json").write_text(report.replace("0" * 64, hashlib.sha256(plan).hexdigest()))
"""
"""Reports what ``report.json`` says, of the plan that it was given."""


class Runs:
    """Runs of one job in a folder, and what they leave."""

    def __init__(self, folder: Path, neuroshard: Callable[..., Any]) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.neuroshard = neuroshard
        report = builders.step_report(source="measured:NVIDIA-H100-80GB-HBM3")
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")

    def write(self, *, script: str = TRAINER, trainer: dict[str, Any] | None = None, **spec: Any) -> Path:
        """Write the job with this script as its trainer."""
        (self.folder / "trainer.py").write_text(script, encoding="utf-8")
        own = {
            "profiler": BUNDLED,
            "experimental": {"planner": {"workBudget": QUICK_WORK}} | spec.pop("experimental", {}),
            "trainer": {"command": [sys.executable, "trainer.py"], "numProcPerNode": 2, **(trainer or {})},
        }
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(builders.job_data(**(own | spec))), encoding="utf-8")
        return path

    def run(self, *options: object, **spec: Any) -> Any:
        """Write the job and run it."""
        return self.neuroshard("run", self.write(**spec), "--run-dir", self.run_dir, *options)

    def train(self, *options: object, **spec: Any) -> Any:
        """Write the job and train it under a plan that was made before, which saves the first two stages."""
        return self.run("--plan", made_plan(self.folder), *options, **spec)

    @property
    def starts(self) -> list[str]:
        """What each start of the trainer noted."""
        return (self.run_dir / "train" / "starts").read_text(encoding="utf-8").splitlines()


@cache
def plan_text(num_devices: int) -> str:
    """Return a plan by columns for the tables of the tests' job."""
    tables = builders.job().spec.model.inline_tables("job")
    assert tables is not None
    columns = Constraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE))
    settings = SearchSettings(work_budget=QUICK_WORK)
    request = builders.request(*tables.tables, num_devices=num_devices, constraints=columns, search=settings)
    return search(request, bundle=load_bundle(bundled_root() / "h100-80gb")).to_json()


def made_plan(folder: Path, *, num_devices: int = 2) -> Path:
    """Return the file of a plan for the tables of the tests' job."""
    path = folder / "mine.json"
    path.write_text(plan_text(num_devices), encoding="utf-8")
    return path
