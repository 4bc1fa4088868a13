"""The command that corrects cost models by the steps of a training."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_costs.bundle import bundled_root, load_bundle
from neuroshard_planner.plans.imported_plan import imported_plan
from support import builders
from support.cli.searches import quick
from support.trainer import training_builders

BUNDLE = bundled_root() / "h100-80gb"
SLOWER = 1.3


class Training:
    """A plan, and the reports of a training under it."""

    def __init__(self, folder: Path, neuroshard: Any) -> None:
        self.folder = folder
        tables = folder / "tables.csv"
        rows = ("name,num_embeddings,embedding_dim,pooling_factor", "a,1000000,64,5", "b,500000,128,2", "c,9000,32,9")
        tables.write_text("\n".join(rows))
        self.plan = folder / "plan.json"
        constraints = folder / "constraints.json"
        constraints.write_text(Constraints(sharding_types=(ShardingType.TABLE_WISE,)).to_json())
        result = neuroshard("plan", tables, *quick(2), "--constraints", constraints, "--out", self.plan)
        assert result.code == 0, result.err
        self.planned = Plan.read(self.plan)
        self.steps = training_builders.slower_ranks(self.planned, SLOWER)
        self.sha256 = hashlib.sha256(self.plan.read_bytes()).hexdigest()

    def drift_report(self, **fields: Any) -> Path:
        """Write a drift report, by default without a change."""
        fields = {"plan_sha256": self.sha256, "reference": self.steps, "recent": self.steps, "changes": (), **fields}
        return self.written("drift-report.json", training_builders.drift_report(**fields))

    def step_report(self, name: str = "step-report.json", **fields: Any) -> Path:
        """Write a step report of 100 steps."""
        fields = {"plan_sha256": self.sha256, "ranks": self.steps, "first_step": 500, **fields}
        return self.written(name, builders.step_report(**fields))

    def written(self, name: str, document: Any) -> Path:
        """Write a document."""
        path = self.folder / name
        path.write_text(document.to_json())
        return path


@pytest.fixture
def training(tmp_path: Path, neuroshard: Any) -> Training:
    """A planned training that takes 1.3 times as long as predicted."""
    return Training(tmp_path, neuroshard)


def test_a_bundle_predicts_the_plan_that_was_measured(neuroshard: Any, training: Training) -> None:
    """After the correction the same plan costs what its steps took; the bundle before is as it was."""
    out = training.folder / "mine"
    reports = (training.drift_report(), training.step_report())

    result = neuroshard("calibrate", BUNDLE, training.plan, *reports, "--out", out)

    assert (result.code, result.err) == (0, f"bundle written to {out}\n")
    assert "lookups" in result.out
    assert "1.3" in result.out
    again = imported_plan(training.planned.tables, training.planned.request, bundle=load_bundle(out))
    before, after = training.planned.predicted.total_ms, again.predicted.total_ms
    assert after == pytest.approx(SLOWER * before, rel=0.01)
    assert load_bundle(BUNDLE).manifest.calibration is None
    assert load_bundle(out).manifest.name == f"{load_bundle(BUNDLE).manifest.name}, corrected by steps"


def test_a_second_correction_builds_on_the_first(neuroshard: Any, training: Training) -> None:
    """Of a bundle that is right already, it changes nothing."""
    first, second = training.folder / "first", training.folder / "second"
    reports = (training.drift_report(), training.step_report())
    neuroshard("calibrate", BUNDLE, training.plan, *reports, "--out", first)

    result = neuroshard("calibrate", first, training.plan, *reports, "--out", second)

    assert result.code == 0
    scales = [load_bundle(path).manifest.calibration for path in (first, second)]
    assert scales[0] is not None
    assert scales[1] is not None
    assert scales[1].compute_scale == pytest.approx(scales[0].compute_scale, rel=1e-3)


def test_a_profile_stays_one(neuroshard: Any, training: Training) -> None:
    """Its links and its fingerprint go with the models, so that later jobs can take the folder.

    The speed of its cores does not: the corrected times are those of the training.
    """
    profile = training.folder / "profile"
    profile.mkdir()
    (profile / "bundle").symlink_to(BUNDLE)
    hardware = builders.hardware(core_loop_ms=0.3)
    (profile / "hardware.json").write_text(hardware.to_json())
    out = training.folder / "mine"

    reports = (training.drift_report(), training.step_report())
    result = neuroshard("calibrate", profile, training.plan, *reports, "--out", out)

    assert result.code == 0, result.err
    assert load_bundle(out / "bundle").manifest.calibration is not None
    assert Hardware.read(out / "hardware.json") == hardware.model_copy(update={"core_loop_ms": None})


def test_reports_that_cannot_be_compared_are_refused(neuroshard: Any, training: Training) -> None:
    """Those of another plan, of another machine, of steps that became slower, and of nothing at all."""

    def refused(*reports: Path) -> str:
        result = neuroshard("calibrate", BUNDLE, training.plan, *reports, "--out", training.folder / "mine")
        assert (result.code, result.out) == (2, "")
        assert not (training.folder / "mine").exists()
        return str(result.err)

    usual = training.drift_report()
    assert "plan_sha256: is 000000000000..." in refused(usual, training.step_report(plan_sha256="0" * 64))
    assert "source: is 'cpu:other'" in refused(usual, training.step_report(source="cpu:other"))
    assert "at least 2 are needed" in refused(usual)
    assert "under one plan, found" in refused(usual, training.plan)
    tables = training.folder / "tables.csv"
    assert "error: " in refused(usual, tables)
    no_plan = neuroshard("calibrate", BUNDLE, usual, "--out", training.folder / "mine")
    assert (no_plan.code, "found none" in no_plan.err) == (2, True)
    slow = training_builders.drift_report().changes
    assert "hint: calibrate by reports from before that step" in refused(
        training.drift_report(changes=slow), training.step_report()
    )


@pytest.mark.parametrize(
    ("first_steps", "problem"),
    [
        ((200,), "step-report-0.json: steps 200 to 299 are in part those of"),
        ((500, 599), "step-report-1.json: steps 599 to 698 are in part those of"),
        ((250, 350), ""),
    ],
    ids=["reference", "last steps", "no overlap"],
)
def test_reports_of_the_same_steps_are_refused(
    neuroshard: Any, training: Training, first_steps: tuple[int, ...], problem: str
) -> None:
    """Their error would be of steps that were fitted to; the reference is of steps 50 to 249."""
    last = [training.step_report(f"step-report-{n}.json", first_step=step) for n, step in enumerate(first_steps)]
    reports = (training.drift_report(), *last)

    result = neuroshard("calibrate", BUNDLE, training.plan, *reports, "--out", training.folder / "mine")

    assert result.code == (2 if problem else 0), result.err
    assert problem in result.err
    assert not problem or "hint: give reports of steps that do not overlap" in result.err


def test_a_reference_of_a_resumed_training_is_of_its_own_steps(neuroshard: Any, training: Training) -> None:
    """A drift report names the first of them: a step report of steps 50 to 149 has none of those from 650 on."""
    out = training.folder / "mine"
    drift = training.drift_report(reference_first_step=650)
    apart, shared = (training.step_report(f"{first}.json", first_step=first) for first in (50, 700))

    assert neuroshard("calibrate", BUNDLE, training.plan, drift, shared, "--out", out).code == 2
    assert neuroshard("calibrate", BUNDLE, training.plan, drift, apart, "--out", out).code == 0


def test_a_plan_with_groups_is_refused(neuroshard: Any, training: Training) -> None:
    """Its steps hold averages of copies."""
    groups = Replication(num_groups=2, layout=GroupLayout.CONTIGUOUS)
    optimizer = {
        "request": training.planned.request.model_copy(
            update={"optimizer": Optimizer.SGD, "topology": builders.topology(4)}
        )
    }
    training.plan.write_text(training.planned.model_copy(update={"replication": groups, **optimizer}).to_json())

    reports = (training.drift_report(), training.step_report())
    result = neuroshard("calibrate", BUNDLE, training.plan, *reports, "--out", training.folder / "mine")

    assert result.code == 2
    assert "replication: steps of groups of devices hold averages of copies" in result.err
