import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.progress import GuardRecord, TrainingProgress
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.run_page import LivePage
from neuroshard_costs.bundle import bundled_root
from neuroshard_report.html.page import render_html
from support.builders import rank_times, step_report, table, table_set
from support.cli.searches import quick


def test_a_plan_becomes_a_page(neuroshard: Any, tmp_path: Path) -> None:
    """On stdout, or in a file that stderr names for people."""
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    neuroshard("plan", "criteo-kaggle", *quick(4), "--out", plan)
    to_stdout = neuroshard("report", plan)
    to_file = neuroshard("report", plan, "-o", page)

    assert (to_stdout.code, to_stdout.err) == (0, "")
    assert to_stdout.out == page.read_text() == render_html(Plan.read(plan))
    assert (to_file.out, to_file.err) == ("", f"report written to {page}\n")


def test_a_missing_plan_is_a_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """The path is named."""
    result = neuroshard("report", tmp_path / "none.json")

    assert (result.code, result.out) == (2, "")
    assert "none.json: does not exist" in result.err


def test_a_step_report_adds_the_measured_dense_part(neuroshard: Any, tmp_path: Path) -> None:
    """It is in the plan's folder; one of another plan is left out."""
    plan, steps = tmp_path / "plan.json", tmp_path / "step-report.json"
    neuroshard("plan", "criteo-kaggle", *quick(2), "--out", plan)
    passes = {"dense_forward_ms": 1.0, "dense_backward_ms": 2.0, "dense_collectives_ms": 0.5}
    ranks = (rank_times(0, **passes), rank_times(1))
    own = step_report(plan_sha256=hashlib.sha256(plan.read_bytes()).hexdigest(), ranks=ranks)

    steps.write_text(own.to_json())
    found = neuroshard("report", plan)
    steps.write_text(own.model_copy(update={"plan_sha256": "0" * 64}).to_json())
    other = neuroshard("report", plan)

    assert "measured, rank 0</th><td>3.00</td><td>0.500</td><td>3.50</td>" in found.out
    assert other.code == 0
    assert "measured, rank 0" not in other.out


def test_a_runs_folder_becomes_a_page_of_what_was_measured(neuroshard: Any, tmp_path: Path) -> None:
    """Predicted next to measured by part and rank, metrics, and the guard; steps of another plan are left out."""
    plan, train = tmp_path / "plan.json", tmp_path / "train"
    train.mkdir()
    neuroshard("plan", "criteo-kaggle", *quick(2), "--out", plan)
    ranks = (rank_times(0, forward_communication_ms=70.5), rank_times(1))
    facts = {"source": Plan.read(plan).predicted.source, "ranks": ranks, "samples_per_second": 1234.0}
    own = step_report(plan_sha256=hashlib.sha256(plan.read_bytes()).hexdigest(), **facts)
    guard = GuardRecord(num_checks=5, change_percent=0.0009)
    progress = TrainingProgress(step=40, metrics={"loss": 0.5236, "auc": 0.7801}, guard=guard)
    (train / "progress.json").write_text(progress.to_json())

    (train / "step-report.json").write_text(own.to_json())
    found = neuroshard("report", tmp_path)
    (train / "step-report.json").write_text(own.model_copy(update={"plan_sha256": "0" * 64}).to_json())
    unmeasured = neuroshard("report", tmp_path)
    refused = neuroshard("report", tmp_path, "--bundle", "h100-80gb")

    assert (found.code, found.err) == (0, "")
    for text in (
        "70.5",
        "s forward exchange: 71.500 ms",
        "0.5236",
        "0.7801",
        "1,234",
        "5 checks",
        "0.0009 %",
    ):
        assert text in found.out
    assert "No steps were measured under this plan" in unmeasured.out
    assert "70.5" not in unmeasured.out
    assert (refused.code, refused.out) == (2, "")


def test_cost_models_add_torchrecs_own_plan(neuroshard: Any, tmp_path: Path) -> None:
    """Among the other ways to shard, where TorchRec is installed; the plan's hash stays that of its file."""
    tables, plan = tmp_path / "tables.json", tmp_path / "plan.json"
    tables.write_text(table_set(table("user"), table("item")).to_json())
    neuroshard("plan", tables, *quick(2), "--out", plan)

    alone = neuroshard("report", plan)
    found = neuroshard("report", plan, "--bundle", bundled_root() / "h100-80gb")

    assert found.code == 0, found.err
    own = re.compile(r'class="name"[^>]*>torchrec<')
    assert (own.search(alone.out), bool(own.search(found.out))) == (None, True)
    digest = hashlib.sha256(plan.read_bytes()).hexdigest()
    assert digest in alone.out
    assert digest in found.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("plan.json", "--watch", "--out", "page.html"), "`neuroshard run` keeps its run.html up to date"),
        (("a", "--watch"), "add --out FILE"),
        (("a", "--bundle", "models"), "without --bundle"),
    ],
)
def test_options_of_another_source_are_refused(neuroshard: Any, arguments: tuple[str, ...], named: str) -> None:
    """Before any cluster is asked."""
    result = neuroshard("report", *arguments)

    assert (result.code, result.out) == (2, "")
    assert named in result.err


def test_the_page_of_a_run_under_way_follows_its_reports(neuroshard: Any, tmp_path: Path) -> None:
    """At most every 10 s, and only where something new was reported; it loads itself again until the stage ends."""
    directory, clock = RunDirectory(tmp_path), [0.0]
    neuroshard("plan", "criteo-kaggle", *quick(2), "--out", directory.plan_file)
    directory.train_dir.mkdir()
    page = LivePage(directory, clock=lambda: clock[0])
    written: list[bool] = []

    def look(seconds: float) -> None:
        clock[0] += seconds
        before = directory.run_report.read_text() if directory.run_report.exists() else ""
        page.look()
        written.append(directory.run_report.exists() and directory.run_report.read_text() != before)

    with directory.locked():
        directory.begun("train")
        report = directory.train_dir / "progress.json"
        report.write_text(TrainingProgress(step=40).to_json())
        look(5)
        look(6)
        look(11)
        report.write_text(TrainingProgress(step=50).to_json())
        look(1)
        look(11)
        report.write_text("{")
        look(11)
        live = directory.run_report.read_text()
        directory.ended("done")
    report.write_text(TrainingProgress(step=60).to_json())
    page.write()

    assert written == [False, True, False, True, False, False]
    assert "step 50." in live
    assert 'http-equiv="refresh"' in live
    ended = directory.run_report.read_text()
    assert "step 60." in ended
    assert "refresh" not in ended


def test_a_stage_that_was_killed_is_not_under_way(neuroshard: Any, tmp_path: Path) -> None:
    """Its page does not wait for it, and says how long its log was written."""
    directory = RunDirectory(tmp_path)
    neuroshard("plan", "criteo-kaggle", *quick(2), "--out", directory.plan_file)
    log = directory.log("train")
    with directory.locked():
        begun = {"stage": "train", "begin": "2026-11-27T10:00:00+00:00", "end": None, "outcome": ""}
        directory._remember("course", [begun])
        log.write_text("step 3\n")
        os.utime(log, (1_795_773_690, 1_795_773_690))
        running = neuroshard("report", tmp_path).out
    killed = neuroshard("report", tmp_path).out

    assert "goes on" in running
    assert 'http-equiv="refresh"' in running
    assert "1 min 30 s, killed" in killed
    assert "refresh" not in killed
