"""Specification of ``neuroshard compare-accuracy``."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.accuracy_comparison import Accuracy, AccuracyComparison, AccuracyPair
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_report.terminal.accuracy_comparison import render_accuracy_comparison
from rich.console import Console
from support import builders
from support.planner.placements import by_columns, given_plan
from support.trainer.trainer_builders import TABLES, job_data, write_job, write_plan
from support.trainer.training_builders import accuracy_comparison

HALVED = WireTypes(forward=WireType.FP16, backward=WireType.FP16)


def written(folder: Path, wire: WireTypes | None) -> tuple[Path, Path]:
    """Write a job of two processes, and a plan in which it sends these types."""
    user, item, country = TABLES
    request = builders.request(*TABLES, num_devices=2, batch_size_per_device=16, wire=wire)
    plan = given_plan(request, by_columns(user, (0, 32)), by_columns(item, (1, 32)), by_columns(country, (1, 16)))
    return write_job(folder, job_data(world_size=2, training={"maxSteps": 3})), write_plan(folder, plan)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.torchrec
def test_a_job_trains_with_narrow_types_and_exactly_from_equal_weights(neuroshard: Any, tmp_path: Path) -> None:
    """On real processes; a few steps in FP16 change the entropy by its rounding, and nothing is left behind."""
    job, plan = written(tmp_path, HALVED)
    out = tmp_path / "found.json"

    result = neuroshard("compare-accuracy", job, plan, "--seeds", 2, "--out", out)

    assert result.code == 0, result.err
    assert "2 pairs of 3 steps on 2 x cpu, of equal weights and batches: exact, and embeddings in FP16" in result.out
    found = AccuracyComparison.read(out)
    assert found.wire == HALVED
    assert [pair.seed for pair in found.pairs] == [0, 1]
    assert found.pairs[0].exact != found.pairs[1].exact
    assert all(0 < abs(pair.change) < 1e-3 for pair in found.pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "plan.json", "found.json"}


def test_a_plan_without_narrow_types_is_refused_before_anything_starts(neuroshard: Any, tmp_path: Path) -> None:
    """With where such types are named."""
    result = neuroshard("compare-accuracy", *written(tmp_path, None))

    assert result.code == 2
    assert "plan.json: sends nothing in narrow types, so that there is nothing to compare" in result.err
    assert "hint: name types in spec.training.communication" in result.err


def test_a_plan_of_another_number_of_processes_is_refused(neuroshard: Any, tmp_path: Path) -> None:
    """As it would be for a training."""
    _, plan = written(tmp_path, HALVED)

    result = neuroshard("compare-accuracy", write_job(tmp_path, job_data(world_size=1)), plan)

    assert result.code == 2
    assert "plan.json" in result.err


@pytest.mark.parametrize(
    ("entropies", "verdict"),
    [
        ([0.81], "+1.250 %; one pair cannot judge: give more seeds"),
        ([0.81, 0.79], "+0.000 % on the mean, standard error 1.250 %: within the noise of these seeds"),
        ([0.81, 0.8101], "+1.256 % on the mean, standard error 0.006 %: worse beyond the noise of these seeds"),
        ([0.79, 0.7901], "-1.244 % on the mean, standard error 0.006 %: better beyond the noise of these seeds"),
    ],
)
def test_pairs_are_judged_by_what_seeds_differ_by(entropies: list[float], verdict: str) -> None:
    """Two standard errors of the mean change."""
    exact = Accuracy(normalized_entropy=0.8, auc=0.75)
    pairs = [
        AccuracyPair(seed=seed, exact=exact, narrow=Accuracy(normalized_entropy=each))
        for seed, each in enumerate(entropies)
    ]
    console = Console(width=140, record=True, file=StringIO())
    console.print(render_accuracy_comparison(accuracy_comparison(pairs=tuple(pairs))))

    assert f"narrow types changed the entropy by {verdict}" in console.export_text()
