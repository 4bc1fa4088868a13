"""``python -m neuroshard_planner``: files in, a plan or one sentence out."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_api.documents.input_statistics import FeatureStatistics
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_costs.bundle import bundled_root, load_bundle
from neuroshard_planner.__main__ import main
from neuroshard_planner.levers import with_levers
from neuroshard_planner.pipeline import plan
from support import builders
from support.mounts import mounted
from support.trainer import training_builders

BUNDLE = bundled_root() / "h100-80gb"


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """A request of a few tables on four devices."""
    path = tmp_path / "request.json"
    path.write_text(builders.request().to_json(), encoding="utf-8")
    return path


def planned(request_file: Path, *, bundle: Path = BUNDLE, out: Path | None = None) -> ExitCode:
    """Run the planner on these files."""
    out = out or request_file.with_name("plan.json")
    return main(["--request", str(request_file), "--bundle", str(bundle), "--out", str(out)])


def test_it_writes_the_plan_that_the_search_finds(request_file: Path) -> None:
    """Byte for byte, so that its hash says whether it is the same."""
    assert planned(request_file) == ExitCode.OK

    bundle = load_bundle(BUNDLE)
    expected = with_levers(plan(PlanRequest.read(request_file), bundle=bundle), costs=bundle).to_json()
    assert request_file.with_name("plan.json").read_text(encoding="utf-8") == expected


def test_a_large_request_and_bundle_are_read_as_their_config_maps_hold_them(tmp_path: Path) -> None:
    """Compressed, since they are above half a megabyte; the plan is the one of the plain files."""
    tables = builders.tables(1500, num_embeddings=1000, reuse_histogram=(0.5, *[1 / 32] * 16))
    request = builders.request(*tables, algorithm=Algorithm.DIM_GREEDY)
    files = {path.name: path.read_bytes() for path in BUNDLE.iterdir()} | {"notes.txt": b"note\n" * 100_000}
    folder = mounted({"request.json": request.to_json().encode()}, tmp_path / "request")
    bundle = mounted(files, tmp_path / "bundle")
    assert [path.name for path in folder.iterdir()] == ["request.json.gz"]
    assert (bundle / "weights.safetensors.gz").exists()

    out = tmp_path / "plan.json"
    assert planned(folder / "request.json.gz", bundle=bundle, out=out) == ExitCode.OK
    assert out.read_text(encoding="utf-8") == plan(request, bundle=load_bundle(BUNDLE)).to_json()


def test_it_plans_for_counted_inputs_near_the_plan_in_force(request_file: Path) -> None:
    """The plan's request has the counted inputs, and the plan says what the one in force costs and what moves."""
    before, statistics = request_file.with_name("before.json"), request_file.with_name("statistics.json")
    assert planned(request_file, out=before) == ExitCode.OK
    asked = PlanRequest.read(request_file)
    features = [
        FeatureStatistics(
            feature=each.name, lookups_per_sample=9.0, distinct_rows_per_lookup=0.5, distinct_lists_per_sample=1.0
        )
        for each in asked.tables.tables
    ]
    found = training_builders.input_statistics(features=tuple(features), changed_features=())
    statistics.write_text(found.to_json(), encoding="utf-8")
    out = request_file.with_name("plan.json")
    files = ["--request", str(request_file), "--bundle", str(BUNDLE), "--out", str(out)]
    assert main([*files, "--statistics", str(statistics), "--incumbent", str(before)]) == ExitCode.OK
    after = Plan.read(out)

    assert {each.pooling_factor for each in after.request.tables.tables} == {9.0}
    assert after.incumbent is not None
    assert after.incumbent.plan_sha256 == hashlib.sha256(before.read_bytes()).hexdigest()
    assert after.predicted.total_ms <= after.incumbent.total_ms


def test_a_damaged_plan_in_force_is_named(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its file, as any input."""
    before = request_file.with_name("before.json")
    before.write_text("{}", encoding="utf-8")
    files = ["--request", str(request_file), "--bundle", str(BUNDLE), "--out", str(request_file.with_name("plan.json"))]

    assert main([*files, "--incumbent", str(before)]) == ExitCode.INVALID_INPUT
    assert str(before) in capsys.readouterr().err


def test_a_plan_in_force_with_groups_is_refused(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its shards are those of one group, and as shards of all devices they would be another plan."""
    before = request_file.with_name("before.json")
    groups = Replication(num_groups=2, layout=GroupLayout.CONTIGUOUS)
    asked = PlanRequest.read(request_file).model_copy(update={"optimizer": Optimizer.SGD})
    before.write_text(builders.plan(asked, replication=groups).to_json(), encoding="utf-8")
    files = ["--request", str(request_file), "--bundle", str(BUNDLE), "--out", str(request_file.with_name("plan.json"))]

    assert main([*files, "--incumbent", str(before)]) == ExitCode.INVALID_INPUT
    assert "replication: plans near one with groups of devices are not made" in capsys.readouterr().err


def test_it_leaves_nothing_else_behind(request_file: Path) -> None:
    """Anyone who watches the folder sees the plan whole or not at all."""
    planned(request_file)

    assert sorted(path.name for path in request_file.parent.iterdir()) == ["plan.json", "request.json"]


def test_it_runs_as_a_module(request_file: Path) -> None:
    """As a pod runs it; what it says is for the log."""
    out = request_file.with_name("plan.json")
    arguments = ["--request", str(request_file), "--bundle", str(BUNDLE), "--out", str(out)]
    result = subprocess.run(
        [sys.executable, "-m", "neuroshard_planner", *arguments], check=True, capture_output=True, text=True
    )

    cost = Plan.read(out).predicted
    assert result.stdout == f"neuroshard: predicted {cost.total_ms:.3f} ms ({cost.source})\n"


def test_nothing_fits(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, so that a fallback may be tried; the message names what binds."""
    request = builders.request(builders.table("huge", num_embeddings=10**11))
    request_file.write_text(request.to_json(), encoding="utf-8")

    assert planned(request_file) == ExitCode.INFEASIBLE
    assert "huge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is not complete JSON"), ("{}", "schema_version: is missing")],
    ids=["empty", "no-request"],
)
def test_a_broken_request_is_named(
    request_file: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    """Exit code 2: trying again would not help."""
    request_file.write_text(text, encoding="utf-8")

    assert planned(request_file) == ExitCode.INVALID_INPUT
    assert capsys.readouterr().err.startswith(f"error: {request_file}: {problem}")


def test_a_counted_dense_part_is_planned_with(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its document is a file of its own; one of another batch is refused with exit code 2."""
    dense, out = request_file.with_name("dense.json"), request_file.with_name("plan.json")
    options = ["--request", str(request_file), "--dense", str(dense), "--bundle", str(BUNDLE), "--out", str(out)]
    dense.write_text(builders.dense_profile().to_json(), encoding="utf-8")
    assert main(options) == ExitCode.OK
    assert Plan.read(out).request.dense == builders.dense_profile()

    dense.write_text(builders.dense_profile(batch_size_per_device=1).to_json(), encoding="utf-8")
    assert main(options) == ExitCode.INVALID_INPUT
    assert capsys.readouterr().err.startswith(f"error: {dense}: was counted for 1 samples")


def test_a_missing_bundle_is_named(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 4, as of the command."""
    assert planned(request_file, bundle=request_file.parent / "nowhere") == ExitCode.UNUSABLE_BUNDLE
    assert "nowhere: is not a bundle" in capsys.readouterr().err


def test_a_damaged_bundle_is_named(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cost models that were cut off are never used."""
    damaged = request_file.with_name("bundle")
    damaged.mkdir()
    for path in BUNDLE.glob("*.*"):
        (damaged / path.name).write_bytes(path.read_bytes()[: path.stat().st_size - (path.suffix == ".safetensors")])

    assert planned(request_file, bundle=damaged) == ExitCode.UNUSABLE_BUNDLE
    assert "was changed or cut off" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full or missing folder is not a bug."""
    out = request_file.parent / "missing" / "plan.json"

    assert planned(request_file, out=out) == ExitCode.INVALID_INPUT
    assert capsys.readouterr().err == f"error: {out}: No such file or directory\nhint: choose another place\n"
