"""Python's functions give what the commands give."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import neuroshard_dlrm as ns
import numpy as np
import pandas as pd
import pytest
import yaml
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm
from neuroshard_cli.main import run
from neuroshard_report.explain.plan import PlanExplanation
from support.builders import request, table, table_set

ROWS: list[dict[str, Any]] = [
    {"name": "user", "num_embeddings": 100_000, "embedding_dim": 32, "pooling_factor": 1.0},
    {"name": "item", "num_embeddings": 20_000, "embedding_dim": 64, "pooling_factor": 3.5},
]
CSV = "name,num_embeddings,embedding_dim,pooling_factor\nuser,100000,32,1.0\nitem,20000,64,3.5\n"
JOB: dict[str, Any] = {
    "apiVersion": "training.neuroshard.dev/v1alpha1",
    "kind": "DLRMTrainingJob",
    "metadata": {"name": "shop"},
    "spec": {
        "model": {
            "embeddingTables": [
                {"name": "user", "numEmbeddings": 100_000, "embeddingDim": 32},
                {"name": "item", "numEmbeddings": 20_000, "embeddingDim": 64, "poolingFactor": "3.5"},
            ],
            "batchSizePerDevice": 1024,
        },
        "data": {"numSamples": 100_000},
        "planner": {"algorithm": "DimGreedy"},
    },
}
UNKNOWN: dict[str, Any] = {"device_type": "h100-80gb"}
H100 = preset("h100-80gb").topology(devices_per_node=2)
DEVICES: dict[str, Any] = {"devices": 2, "device": "h100-80gb"}
GREEDY: dict[str, Any] = {**DEVICES, "algorithm": "dim_greedy"}
WRONG: Any = 3
"""Where a path, or a whole number, is expected."""


def command(folder: Path, *arguments: object) -> str:
    """Return the file that ``neuroshard plan`` writes."""
    out = folder / "of-the-command.json"
    assert run(["plan", *map(str, arguments), "--out", str(out)]) == 0
    return out.read_text()


def written(folder: Path) -> dict[str, Path]:
    """Write a file of each kind that can be planned from, and return the files by kind."""
    contents = {
        "tables.json": table_set(table("a"), table("b", num_embeddings=50)).to_json(),
        "tables.csv": CSV,
        "job.yaml": yaml.safe_dump(JOB),
        "request.json": request(table("a"), topology=H100, algorithm=Algorithm.DIM_GREEDY).to_json(),
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {name: folder / name for name in contents}


@pytest.mark.parametrize("name", ["tables.json", "tables.csv", "job.yaml"])
@pytest.mark.parametrize("kind", [str, Path])
def test_files_give_the_plan_of_the_command(tmp_path: Path, name: str, kind: Callable[[Path], Any]) -> None:
    """Byte for byte, for each kind of file."""
    file = written(tmp_path)[name]
    options = () if name == "job.yaml" else ("--set", "spec.planner.algorithm=DimGreedy")
    found = ns.plan(kind(file), algorithm=None if name == "job.yaml" else "dim_greedy", **DEVICES)

    assert found.to_json() == command(tmp_path, file, "--devices", 2, "--device-type", "h100-80gb", *options)


def test_a_request_and_a_plan_say_all_that_is_planned(tmp_path: Path) -> None:
    """Neither names devices again, and of a plan the request counts."""
    file = written(tmp_path)["request.json"]
    found = ns.plan(file)
    found.write(tmp_path / "plan.json")

    assert found.to_json() == command(tmp_path, file) == ns.plan(json.loads(file.read_text())).to_json()
    assert found == ns.plan(found) == ns.plan(tmp_path / "plan.json")
    assert command(tmp_path, tmp_path / "plan.json") == found.to_json()
    assert ns.plan(file, batch_size=64) != found


def test_a_workload_is_planned_by_its_name(tmp_path: Path) -> None:
    """As by the command."""
    found = ns.plan("criteo-kaggle", algorithm="dim_greedy", **DEVICES)
    options = ("--devices", 2, "--device-type", "h100-80gb", "--set", "spec.planner.algorithm=DimGreedy")

    assert found.to_json() == command(tmp_path, "criteo-kaggle", *options)


def test_a_search_names_what_would_help_as_the_commands_does(tmp_path: Path) -> None:
    """Without an algorithm the plan is searched."""
    file = written(tmp_path)["tables.csv"]

    assert ns.plan(file, **DEVICES).to_json() == command(tmp_path, file, "--devices", 2, "--device-type", "h100-80gb")


def test_rows_and_frames_are_the_table_set_of_a_csv(tmp_path: Path) -> None:
    """A DataFrame is read by the rules of a CSV, so that empty cells are not set."""
    (tmp_path / "tables.csv").write_text(CSV)
    asked: dict[str, Any] = {"algorithm": "dim_greedy", **DEVICES}
    of_file = ns.plan(tmp_path / "tables.csv", **asked)
    frame = pd.DataFrame(ROWS).assign(zipf_exponent=[None, None])

    assert ns.plan(frame, **asked) == of_file
    assert ns.plan(ROWS, **asked).rows() == of_file.rows()
    assert ns.plan(JOB, devices=2, device="h100-80gb").rows("shards") == of_file.rows("shards")


def test_numbers_of_numpy_and_features_in_any_sequence_are_read() -> None:
    """As a notebook has them: in arrays, in tuples, and as lists in the cells of a frame."""
    asked: dict[str, Any] = {"algorithm": "dim_greedy", **DEVICES}
    features = {"user": ["user", "friend"], "item": ["item", "seen"]}
    lists = [{**row, "pooling_factor": 2.0, "feature_names": features[row["name"]]} for row in ROWS]
    tuples = [{**row, "feature_names": tuple(features[row["name"]])} for row in ROWS]
    for row in tuples:
        del row["pooling_factor"]
    arrays = [{**row, "num_embeddings": np.int64(row["num_embeddings"])} for row in ROWS]
    sizes: dict[str, Any] = {**asked, "devices": np.int64(2), "batch_size": np.int32(64)}

    assert ns.plan(tuples, **asked) == ns.plan(lists, **asked)
    assert ns.plan(pd.DataFrame(lists), **asked).rows() == ns.plan(lists, **asked).rows()
    assert ns.plan(arrays, **asked) == ns.plan(ROWS, **asked)
    assert ns.plan(ROWS, **sizes) == ns.plan(ROWS, **asked, batch_size=64)


def test_topology_and_constraints_are_dictionaries_or_files(tmp_path: Path) -> None:
    """With the fields of their documents."""
    topology = preset("h100-80gb").topology(devices_per_node=2)
    (tmp_path / "topology.json").write_text(topology.to_json())
    limits = {"max_shards_per_table": 1}
    found = [
        ns.plan(ROWS, algorithm="dim_greedy", devices=each, constraints=limits)
        for each in (tmp_path / "topology.json", json.loads(topology.to_json()))
    ]

    assert found[0] == found[1]
    assert found[0].as_source().constraints.max_shards_per_table == 1  # type: ignore[union-attr]


def test_results_are_short_and_whole() -> None:
    """Units are in the names, rows in frames."""
    plan = ns.plan(ROWS, algorithm="dim_greedy", **DEVICES)
    devices = plan.to_frame("devices")
    estimate = ns.estimate(ROWS, **DEVICES)

    assert repr(plan).startswith("Plan(tables=2, devices=2 x h100-80gb, predicted_ms=")
    assert plan.source == "simulated:NVIDIA-H100-80GB-HBM3" == estimate.source
    assert devices["total_ms"].max() == plan.predicted_ms >= plan.lower_bound_ms
    assert devices["used_bytes"].max() == plan.peak_memory_bytes
    assert [row["table"] for row in plan.rows()] == ["user", "item"]
    assert str(plan).startswith("model      tables, 2 tables\n")
    assert estimate.lower_bound_ms == pytest.approx(ns.plan(ROWS, **DEVICES).lower_bound_ms)
    assert estimate.least_bytes == sum(row["weights_bytes"] + row["optimizer_state_bytes"] for row in estimate.rows())
    assert 0 < estimate.rows()[0]["alone_ms"] < estimate.rows()[1]["alone_ms"]
    assert "compute ms alone" in estimate._repr_html_()


def test_frames_have_the_same_columns_without_rows() -> None:
    """A cell that sums what moves needs no case for plans between which nothing does."""
    greedy, random = (ns.plan(ROWS, **{**DEVICES, "algorithm": name}) for name in ("dim_greedy", "random"))

    assert list(greedy.diff(greedy).to_frame()) == list(greedy.diff(random).to_frame())
    assert greedy.diff(greedy).to_frame()["moved_bytes"].sum() == 0 == greedy.diff(greedy).moved_bytes
    assert "from_devices" in list(ns.score(greedy).to_frame())
    assert len({greedy, ns.plan(ROWS, **GREEDY), random}) == 2


@pytest.mark.parametrize("place", ["none/plan.json", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    """And not the file that takes its place at the end."""
    plan = ns.plan(ROWS, **GREEDY)

    with pytest.raises(ns.ExpectedError, match=rf"^{tmp_path / place}: cannot be written: .*; hint: make its folder"):
        plan.write(tmp_path / place)
    assert not list(tmp_path.iterdir())


def test_each_result_is_as_wide_as_a_notebook_and_loses_nothing() -> None:
    """Tables that are wider go on below; nothing is cut off."""
    compared = ns.compare(ROWS, algorithms=["random", "dim_greedy"], **DEVICES)
    read = ns.read("criteo-kaggle")

    for shown in (str(compared), str(read), str(ns.estimate(ROWS, **DEVICES)), str(ns.plan(ROWS, **DEVICES))):
        assert max(map(len, shown.splitlines())) <= 100
    assert all(word in str(compared) for word in ("predicted ms", "peak memory", "seconds"))
    assert "hits per row" in read._repr_html_()


def test_plans_are_explained_compared_and_scored(tmp_path: Path) -> None:
    """As by the commands, from objects and from files."""
    plan = ns.plan(ROWS, algorithm="dim_greedy", **DEVICES)
    plan.write(tmp_path / "plan.json")
    compared = ns.compare(ROWS, algorithms=["dim_greedy", "random"], **DEVICES)
    table = ns.explain(tmp_path / "plan.json", "item")

    assert ns.read(tmp_path / "plan.json") == plan
    assert {row["algorithm"] for row in compared.rows()} == {"dim_greedy", "random"}
    assert repr(compared) == f"Comparison(algorithms=2, best={compared.best})"
    assert plan.explain().rows()[0]["ms"] == pytest.approx(max(row["ms"] for row in plan.explain().rows()))
    assert "item" in repr(table)
    with pytest.raises(ns.InputError, match=r"^devices: the plan already says what it answers"):
        ns.score(plan, devices=2)
    assert ns.score(plan).plan.predicted_ms == pytest.approx(plan.predicted_ms)
    assert str(ns.score(tmp_path / "plan.json")) == str(ns.score(plan))
    assert plan.diff(tmp_path / "plan.json").moved_bytes == 0


def test_the_plan_in_force_is_an_object_or_a_file(tmp_path: Path) -> None:
    """Both say what moves, and name the same plan."""
    before = ns.plan(ROWS, algorithm="dim_greedy", **DEVICES)
    before.write(tmp_path / "before.json")
    found = ns.plan(ROWS, incumbent=before, move_price=0.1, **DEVICES)

    assert found == ns.plan(ROWS, incumbent=tmp_path / "before.json", move_price=0.1, **DEVICES)
    (tmp_path / "before.yaml").write_text(yaml.safe_dump(json.loads(before.to_json())))
    assert ns.read(tmp_path / "before.yaml") == before
    assert ns.plan(ROWS, incumbent=tmp_path / "before.yaml", **DEVICES).rows() == ns.plan(ROWS, **DEVICES).rows()
    details = found.explain().details
    assert isinstance(details, PlanExplanation)
    assert details.moves is not None


def test_torchrecs_planner_is_limited_in_the_main_thread_alone() -> None:
    """Elsewhere it is refused, as it could not be interrupted."""
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(lambda: ns.compare(ROWS, algorithms=["torchrec"], **DEVICES)).exception()
        others = threads.submit(lambda: ns.compare(ROWS, algorithms=["random"], **DEVICES)).result()

    assert str(found).startswith("algorithms: the time of TorchRec's planner is limited in the main")
    assert others.best == "random"


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: ns.plan(ROWS), ns.InputError, "^devices and device: both are needed, or a topology file as devices"),
        (lambda: ns.plan(ROWS, devices=2, device="h100"), ns.InputError, "^device: device type 'h100' is not known"),
        (lambda: ns.plan(ROWS, devices=17, device="h100-80gb"), ns.InputError, "^devices: 17 do not fill 3"),
        (lambda: ns.plan(3), ns.InputError, "^source: is an object of the type int"),
        (lambda: ns.plan("nothing.csv", **DEVICES), ns.DocumentError, "nothing.csv: does not exist"),
        (lambda: ns.plan("/", **DEVICES), ns.DocumentError, "^/: is a folder; hint: give a file of it"),
        (lambda: ns.plan("./m:ebc", **DEVICES), ns.DocumentError, "^m:ebc: does not exist"),
        (lambda: ns.explain(ns.plan(ROWS, **GREEDY), 3), ns.InputError, "^table: is not a name .found 3.; hint: "),  # type: ignore[arg-type]
        (lambda: ns.plan("criteo-kagle", **DEVICES), ns.ExpectedError, "did you mean criteo-kaggle"),
        (lambda: ns.plan([{"name": "a"}], **DEVICES), ns.DocumentError, "tables.0..num_embeddings: is missing"),
        (lambda: ns.plan(pd.DataFrame([{"name": "a"}]), **DEVICES), ns.DocumentError, "column num_embeddings"),
        (lambda: ns.plan({"kind": "Pod"}, **DEVICES), ns.DocumentError, "is a Pod, expected a DLRMTrainingJob"),
        (
            lambda: ns.plan(JOB, device="h100-80gb", set={"spec.planner.sed": 3}),
            ns.InputError,
            "^set: spec.planner has no",
        ),
        (lambda: ns.plan(ROWS, **DEVICES, constraints={"min": 1}), ns.DocumentError, "^constraints: min: is not"),
        (lambda: ns.plan(ROWS, **{**DEVICES, "constraints": 3}), ns.InputError, "^constraints: is of the type int"),
        (lambda: ns.plan(ROWS, **DEVICES, sample_batches=[1]), ns.InputError, "^sample_batches: are of a TorchRec"),
        (lambda: ns.plan(ROWS, **DEVICES, move_price=1.0), ns.InputError, "^move_price: .* with incumbent"),
        (
            lambda: ns.plan(ROWS, **DEVICES, incumbent=ns.plan(ROWS, **GREEDY), move_price=-1),
            ns.InputError,
            "^move_price",
        ),
        (lambda: ns.plan(ROWS, **DEVICES, incumbent=WRONG), ns.InputError, "^incumbent: is of the type int"),
        (lambda: ns.plan(ROWS, **{**GREEDY, "algorithm": "Greedy"}), ns.InputError, "^algorithm: there is no 'Greedy'"),
        (lambda: ns.plan(ROWS, **{**DEVICES, "device": 8}), ns.InputError, "^device: is of the type int"),
        (lambda: ns.plan(ROWS, **DEVICES, batch_size=WRONG * 0.5), ns.InputError, "^batch_size: is of the type float"),
        (lambda: ns.plan(ROWS, **DEVICES, batch_size=0), ns.InputError, "^batch_size: must be at least 1"),
        (lambda: ns.plan(ROWS, **{**DEVICES, "set": "spec.suspend=true"}), ns.InputError, "^set: is of the type str"),
        (
            lambda: ns.plan(ROWS, **DEVICES, set={"spec.planner.algorithm": "Best"}),
            ns.DocumentError,
            "^set: spec.planner.algorithm: input should be",
        ),
        (lambda: ns.compare(ROWS, algorithms=[], **DEVICES), ns.InputError, "^algorithms: names none"),
        (lambda: ns.compare(ROWS, torchrec_seconds=0, **DEVICES), ns.InputError, "^torchrec_seconds: must be above 0"),
        (lambda: ns.diff(WRONG, WRONG), ns.InputError, "^before: is of the type int"),
        (
            lambda: ns.explain(ns.plan(ROWS, **GREEDY), bundle="a100-80gb"),
            ns.ExpectedError,
            "bundle of the plan with bundle",
        ),
        (lambda: ns.plan(ROWS, **UNKNOWN), TypeError, "unexpected keyword argument 'device_type'"),
        (lambda: ns.compare(ROWS, algorithms=["best"], **DEVICES), ns.InputError, "^algorithms: there is no 'best'"),
    ],
)
def test_errors_name_the_argument(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    """Not the option of the command."""
    with pytest.raises(kind, match=words):
        call()


def test_nothing_is_imported_before_it_is_used() -> None:
    """Nor does a star import what needs torch, which is public all the same."""
    code = (
        "import sys, neuroshard_dlrm as ns\n"
        "assert not {'numpy', 'pydantic', 'torch'} & set(sys.modules)\n"
        "assert {'plan', 'NeuroShardPlanner'} <= set(dir(ns))\n"
        "assert 'NeuroShardPlanner' not in ns.__all__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(hasattr(ns, name) for name in ns.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plans_of'"):
        ns.plans_of  # noqa: B018 - what is asked


def test_a_frame_without_pandas_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are there without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    plan = ns.plan(ROWS, algorithm="dim_greedy", **DEVICES)

    with pytest.raises(ns.ExpectedError, match=r"needs the package pandas; hint: pip install pandas, or take rows\(\)"):
        plan.to_frame()
