import json
import re
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.dense_layout import DenseGroup, DenseStrategy, PlannedUnit
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.sizes import batch_sizes
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import bundled_root
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.pipeline import plan as search
from support.builders import dense_operators, dense_profile, job, job_data, table, table_set
from support.cli.searches import quick

DEVICES = quick(8)


def written(folder: Path, count: int) -> Path:
    """Write a set of that many tables of several sizes."""
    members = [
        table(f"t{index}", num_embeddings=10 ** (2 + index % 6), embedding_dim=32 * (1 + index % 4))
        for index in range(count)
    ]
    path = folder / "tables.json"
    path.write_text(table_set(*members).to_json())
    return path


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Write a set of twelve tables."""
    return written(tmp_path, 12)


@pytest.fixture
def few_tables(tmp_path: Path) -> Path:
    """Write a set of three tables, for requests that are searched for many times or in vain."""
    return written(tmp_path, 3)


def test_a_workload_is_planned_by_its_name(neuroshard: Any) -> None:
    """The output has the summary, every device, and where the numbers come from."""
    result = neuroshard("plan", "mlperf-dlrm-dcnv2", *DEVICES)

    assert (result.code, result.err) == (0, "")
    assert "simulated:" in result.out
    assert "above the lower bound" in result.out
    rows = result.out.partition("\ndev ")[2].partition("\n\n")[0].splitlines()[1:]
    runs = [run.split("-") for row in rows for run in row.partition("  ")[0].split(", ")]
    assert sorted(device for run in runs for device in range(int(run[0]), int(run[-1]) + 1)) == list(range(8))


def test_what_would_help_a_plan_of_a_plan_file_is_named_by_its_field(neuroshard: Any, tables: Path) -> None:
    """Such a file takes neither settings nor devices; its plan is the same, byte for byte."""
    first, page = tables.with_name("plan.json"), tables.with_name("report.html")
    of_tables = neuroshard("plan", tables, *quick(16), "--out", first)

    again = neuroshard("plan", first, "--out", tables.with_name("again.json"), "--out", page)

    assert "; --devices 3x8 --batch-size 8192, or spec.trainer.numNodes: 3" in of_tables.out
    assert "; spec.trainer.numNodes: 3\n" in again.out
    assert "--devices" not in again.out
    assert "; spec.trainer.numNodes: 3" in page.read_text()
    assert tables.with_name("again.json").read_bytes() == first.read_bytes()


def test_a_report_shows_the_plan_under_other_traffic(neuroshard: Any, tables: Path) -> None:
    """One row for the plan and one for each baseline, in the summary and the page."""
    page = tables.with_name("report.html")
    result = neuroshard("plan", tables, *DEVICES, "--out", page)

    assert result.code == 0
    assert "traffic 30 % off" in result.out
    section = page.read_text().partition('id="traffic"')[2].partition("</section>")[0]
    rows = re.findall(r'<th scope="row">(\w+)</th>', section)
    assert rows == [Algorithm.NEUROSHARD, *BASELINES]
    assert section.count("<td>") == 4 * len(rows)


def test_a_report_leaves_the_plan_as_it_is(neuroshard: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request gives the same bytes with and without a page, and the page can be made from them later.

    Stderr names the files for people.
    """
    monkeypatch.setattr("neuroshard_dlrm.comparing.find_spec", lambda _: None)  # TorchRec's plan is in the later page
    alone, beside = tables.with_name("alone.json"), tables.with_name("beside.json")
    page, later = tables.with_name("report.html"), tables.with_name("later.html")
    neuroshard("plan", tables, *DEVICES, "--out", alone)
    both = neuroshard("plan", tables, *DEVICES, "--out", beside, "--out", page)
    result = neuroshard("report", alone, "--bundle", bundled_root() / "h100-80gb", "--out", later)

    assert alone.read_bytes() == beside.read_bytes()
    assert (both.code, result.code) == (0, 0)
    assert both.err.splitlines() == [f"plan written to {beside}", f"report written to {page}"]
    assert page.read_text().startswith("<!doctype html>")
    assert later.read_bytes() == page.read_bytes()


def test_the_document_alone_goes_to_stdout_for_machines(neuroshard: Any, tables: Path) -> None:
    """It is the same as the file, byte for byte, and reads back as a plan."""
    path = tables.with_name("plan.json")
    result = neuroshard("plan", tables, *DEVICES, "--json", "--out", path)

    assert (result.code, result.err) == (0, "")
    assert result.out == path.read_text()
    assert [placed.name for placed in Plan.from_json(result.out).tables] == [f"t{index}" for index in range(12)]


def test_a_full_disk_does_not_take_the_result_along(
    neuroshard: Any, few_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary is printed all the same."""

    def full(path: Path, text: str) -> None:
        raise CommandError(f"{path}: cannot be written: No space left on device ({len(text)} bytes)")

    monkeypatch.setattr("neuroshard_cli.shared.output.write_file", full)
    result = neuroshard("plan", few_tables, *DEVICES, "--out", few_tables.with_name("plan.json"))

    assert result.code == ExitCode.INVALID_INPUT
    assert "predicted" in result.out
    assert "plan.json: cannot be written: No space left" in result.err


def test_equal_commands_give_equal_plans(neuroshard: Any, few_tables: Path) -> None:
    """No clock and no chance enters a plan."""
    first, second = (
        neuroshard("plan", few_tables, *DEVICES, "--json", "--set", "spec.experimental.planner.seed=3")
        for _ in range(2)
    )

    assert first.out == second.out


def test_a_csv_is_a_table_set(neuroshard: Any, tmp_path: Path) -> None:
    """The header names the four columns that are needed."""
    path = tmp_path / "tables.csv"
    path.write_text("name,num_embeddings,embedding_dim,pooling_factor\nuser,1000000,64,1.5\nitem,5000,32,20\n")
    result = neuroshard("plan", path, *DEVICES)

    assert result.code == 0
    assert "tables, 2 tables" in result.out


def test_a_baseline_can_be_asked_for(neuroshard: Any, tables: Path) -> None:
    """The plan says by which algorithm it was made."""
    result = neuroshard("plan", tables, *DEVICES, "--set", "spec.planner.algorithm=DimGreedy", "--json")

    assert Plan.from_json(result.out).algorithm == "dim_greedy"


def test_more_devices_than_tables_leaves_devices_empty(neuroshard: Any, tmp_path: Path) -> None:
    """No error: a small model on a large machine is a plan too."""
    path = tmp_path / "one.json"
    path.write_text(table_set(table("only", num_embeddings=10, embedding_dim=4)).to_json())
    result = neuroshard("plan", path, *DEVICES)

    assert result.code == 0


GOOD = {"schema_version": TableSet.schema_name, "tables": [{"name": "a", "num_embeddings": 1000, "embedding_dim": 32}]}


def _with(**fields: Any) -> str:
    return json.dumps({**GOOD, "tables": [{**GOOD["tables"][0], **fields}]})  # type: ignore[dict-item]


BROKEN = {
    "empty set": (json.dumps({**GOOD, "tables": []}), 2, "tables"),
    "empty file": ("", 2, "bad.json"),
    "duplicate names": (json.dumps({**GOOD, "tables": GOOD["tables"] * 2}), 2, "must be unique"),  # type: ignore[operator]
    "zero rows": (_with(num_embeddings=0), 2, "tables[0].num_embeddings"),
    "negative pooling": (_with(pooling_factor=-1), 2, "tables[0].pooling_factor"),
    "odd dim": (_with(embedding_dim=30), 2, "tables[0].embedding_dim: must be a multiple of 4"),
    "text for a number": (_with(embedding_dim="64"), 2, "tables[0].embedding_dim"),
    "nan histogram": (_with(reuse_histogram=[float("nan")] * 17), 2, "tables[0].reuse_histogram"),
    "unknown key": (_with(rows=3), 2, "tables[0].rows: is not a known key"),
    "wrong version": (json.dumps({**GOOD, "schema_version": "table-set/v9"}), 2, "schema_version"),
    "another document": (json.dumps({"schema_version": "topology/v1"}), 2, "schema_version"),
    "truncated": (json.dumps(GOOD)[:-20], 2, "is not complete JSON"),
    "no tables": ("[1, 2]", 2, "[0]: must hold the fields of a table (found 1)"),
    "larger than all devices": (_with(num_embeddings=10**10, embedding_dim=128), 3, "'a'"),
}


@pytest.mark.parametrize(("text", "code", "words"), BROKEN.values(), ids=BROKEN)
def test_broken_tables_are_one_sentence(neuroshard: Any, tmp_path: Path, text: str, code: int, words: str) -> None:
    """The exit code says what kind of fault it is, the sentence names the field or the table."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    result = neuroshard("plan", path, *DEVICES)

    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert all(line.startswith(("error: ", "hint: ")) for line in result.err.splitlines())
    assert words in result.err


def test_binary_garbage_is_one_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """As when the wrong file is given."""
    path = tmp_path / "tables.yaml"
    path.write_bytes(bytes(range(256)))
    result = neuroshard("plan", path, *DEVICES)

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "is not text in UTF-8" in result.err


def test_errors_are_json_for_machines(neuroshard: Any, tmp_path: Path) -> None:
    """One object on stderr, nothing on stdout."""
    result = neuroshard("plan", tmp_path / "none.yaml", *DEVICES, "--json")

    assert result.out == ""
    assert json.loads(result.err)["exit_code"] == result.code == 2


def test_a_counted_dense_part_is_in_the_plan_and_its_ledger(neuroshard: Any, tables: Path) -> None:
    """The plan carries the document, and every device's ledger its bytes."""
    dense, plan = tables.with_name("dense.json"), tables.with_name("plan.json")
    profile = dense_profile(*TableSet.read(tables).tables)
    dense.write_text(profile.to_json())

    assert neuroshard("plan", tables, *DEVICES, "--dense", dense, "--out", plan).code == 0

    found = Plan.read(plan)
    assert found.request.dense == profile
    kept = profile.total_bytes - profile.working_bytes
    assert all(kept <= device.dense_bytes <= profile.total_bytes for device in found.memory)


@pytest.mark.parametrize(
    ("dense", "option", "words"),
    [
        ("{}", (), "dense.json: schema_version: is missing"),
        ("cut", (), "dense.json: is not complete JSON"),
        ("other model", (), "dense.json: was counted for tables with other features or widths"),
        ("other batch", (), "dense.json: was counted for 64 samples per device, the request has 8,192"),
        (
            "fits",
            ("--set", "spec.experimental.planner.denseMemoryPerDevice=1Gi"),
            "--dense: excludes --set spec.experimental.planner.dense",
        ),
    ],
)
def test_a_dense_profile_of_something_else_is_one_sentence(
    neuroshard: Any, tables: Path, dense: str, option: tuple[str, ...], words: str
) -> None:
    """Exit code 2, by the name of the file or the option."""
    members = TableSet.read(tables).tables
    texts = {
        "cut": dense_profile(*members).to_json()[:50],
        "other model": dense_profile(table("other")).to_json(),
        "other batch": dense_profile(*members, batch_size_per_device=64).to_json(),
        "fits": dense_profile(*members).to_json(),
    }
    path = tables.with_name("dense.json")
    path.write_text(texts.get(dense, dense))

    result = neuroshard("plan", tables, *DEVICES, "--dense", path, *option)

    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_a_sharded_dense_part_is_in_summary_explanation_and_report(neuroshard: Any, few_tables: Path) -> None:
    """Each names the units, what they need, and that their times are simulated."""
    dense, plan, report = (few_tables.with_name(name) for name in ("dense.json", "plan.json", "report.html"))
    dense.write_text(dense_profile(*TableSet.read(few_tables).tables).to_json())
    units = "units: [{module: over_arch, strategy: ZeRO3}]"
    setting = f"spec.experimental.denseParallelism={{{units}, activationCheckpointing: Always}}"
    choices = ("--set", "spec.training.denseParallelism.policy=Shard", "--set", setting)

    result = neuroshard("plan", few_tables, *DEVICES, "--dense", dense, *choices, "--out", plan, "--out", report)
    explained = neuroshard("explain", plan)

    assert (result.code, explained.code) == (0, 0)
    found = Plan.read(plan)
    assert found.dense is not None
    assert found.dense.units == (
        PlannedUnit(module="over_arch", strategy=DenseStrategy.ZERO3, group=DenseGroup.NODE, checkpointed=True),
    )
    assert "1 of 1 units zero3 over each node, 1 checkpointed" in result.out
    assert "overlap assumed" in result.out
    assert "zero3 over 8, checkpointed" in explained.out
    assert "over_arch" in report.read_text()
    assert neuroshard("validate", plan).code == 0


def test_a_split_unit_is_in_summary_explanation_and_report(neuroshard: Any, few_tables: Path) -> None:
    """In words: its operators are gathered one after the other."""
    dense, plan, report = (few_tables.with_name(name) for name in ("dense.json", "plan.json", "report.html"))
    counted = dense_profile(*TableSet.read(few_tables).tables)
    (unit,) = counted.units
    unit = unit.model_copy(update={"operators": dense_operators(unit.num_parameters // 2, "0", "2")})
    dense.write_text(counted.model_copy(update={"units": (unit,)}).to_json())
    units = "units: [{module: over_arch, strategy: ZeRO3}]"
    choices = ("--set", f"spec.experimental.denseParallelism={{{units}, operatorSplitting: Always}}")

    result = neuroshard("plan", few_tables, *DEVICES, "--dense", dense, *choices, "--out", plan, "--out", report)
    explained = neuroshard("explain", plan)

    assert (result.code, explained.code) == (0, 0)
    found = Plan.read(plan)
    assert found.dense is not None
    assert found.dense.units == (
        PlannedUnit(module="over_arch", strategy=DenseStrategy.ZERO3, group=DenseGroup.NODE, split=True),
    )
    assert "1 of 1 units zero3 over each node, 1 operator by operator" in result.out
    assert "zero3 over 8, operator by operator" in explained.out
    assert "zero3, operator by operator" in report.read_text()
    assert neuroshard("validate", plan).code == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("training.denseParallelism.policy=Shard", "give the counted dense part to `neuroshard plan --dense`"),
        (
            "experimental.denseParallelism.units=over_arch",
            "spec.experimental.denseParallelism.units: input should be a valid array",
        ),
        (
            "experimental.denseParallelism.units=[{module: over_arch, strategy: half}]",
            "denseParallelism.units[0].strategy: input should be",
        ),
    ],
)
def test_choices_of_a_dense_part_that_cannot_be_read_are_one_sentence(
    neuroshard: Any, tables: Path, option: str, words: str
) -> None:
    """Exit code 2, by the name of the field."""
    result = neuroshard("plan", tables, *DEVICES, "--set", f"spec.{option}")

    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_batch_sizes_have_speed_and_memory_and_the_plan_is_for_the_first(neuroshard: Any, tables: Path) -> None:
    """Each row is the plan of a request of that size; one that does not fit has its reason."""
    asked = (
        "plan",
        tables,
        *DEVICES,
        "--set",
        "spec.planner.maxMemoryPerDevice=10Gi",
        "--json",
        "--set",
        "spec.planner.algorithm=SizeGreedy",
    )

    alone = neuroshard(*asked)
    result = neuroshard(*asked, "--batch-size", "8192,1024,1048576")

    assert (alone.code, result.code) == (0, 0)
    found = json.loads(result.out)
    plan = json.loads(alone.out)
    same, small, large = found["batch_sizes"]
    assert found["plan"] == plan
    assert same["embedding_ms"] == plan["predicted"]["total_ms"]
    assert same["samples_per_second"] == pytest.approx(1000 * 8 * 8192 / plan["step"]["total_ms"])
    assert same["dense_ms"] is None
    assert small["memory_bytes"] < same["memory_bytes"] <= same["capacity_bytes"]
    assert large["batch_size_per_device"] == 1048576
    assert "no device with memory" in large["problem"]


@pytest.mark.parametrize(("memory", "code"), [("10Gi", 0), ("1Gi", ExitCode.INFEASIBLE)])
def test_the_batch_size_of_the_plan_is_searched_once(
    neuroshard: Any, tables: Path, monkeypatch: pytest.MonkeyPatch, memory: str, code: int
) -> None:
    """The row of the plan's own batch size is that of the plan itself, also where nothing fits."""
    sizes = []

    def counted(request: PlanRequest, **options: Any) -> Plan:
        sizes.append(request.batch_size_per_device)
        return search(request, **options)

    monkeypatch.setattr("neuroshard_planner.pipeline.plan", counted)
    asked = (
        "plan",
        tables,
        *DEVICES,
        "--set",
        f"spec.planner.maxMemoryPerDevice={memory}",
        "--set",
        "spec.planner.algorithm=SizeGreedy",
    )

    result = neuroshard(*asked, "--batch-size", "8192,1024")

    assert result.code == code
    assert sizes == [8192, 1024]


def test_batch_sizes_take_a_dense_part_counted_for_each(neuroshard: Any, tables: Path) -> None:
    """The placeholder names the file of a size, for the plan too; its time is in the samples per second."""
    members = TableSet.read(tables).tables
    for size in (4096, 8192):
        profile = dense_profile(*members, batch_size_per_device=size)
        tables.with_name(f"dense-{size}.json").write_text(profile.to_json())
    greedy = ("--set", "spec.planner.algorithm=SizeGreedy")
    asked = ("plan", tables, *DEVICES, *greedy, "--dense", tables.with_name("dense-{batch}.json"))

    result = neuroshard(*asked, "--batch-size", "4096,8192", "--json")
    missing = neuroshard(*asked, "--batch-size", "4096,16384")
    single = neuroshard(*asked[:-2], "--dense", tables.with_name("dense-8192.json"), "--batch-size", "4096,8192")
    shown = neuroshard(*asked, "--batch-size", "4096,8192")

    first, second = json.loads(result.out)["batch_sizes"]
    assert first["dense_ms"] == second["dense_ms"] > 0  # the counts differ by their batch size alone
    step_ms = second["embedding_ms"] + second["dense_ms"]
    assert second["samples_per_second"] == pytest.approx(1000 * 8 * 8192 / step_ms)
    assert (missing.code, single.code) == (2, 2)
    assert "dense-16384.json: does not exist" in missing.err
    assert "is counted for one batch size" in single.err
    assert "hint: " in single.err
    assert "samples/s" in shown.out
    assert "4,096" in shown.out


def test_a_batch_that_the_plan_chooses_is_told(neuroshard: Any, tables: Path) -> None:
    """The plan has the sizes that were tried, and what becomes of learning rates; its request has the chosen one."""
    members = TableSet.read(tables).tables
    model = job_data()["spec"]["model"] | {"batchSizePerDevice": "Auto"}
    for size in batch_sizes(job(model=model).spec):
        profile = dense_profile(*members, batch_size_per_device=size)
        tables.with_name(f"dense-{size}.json").write_text(profile.to_json())
    settings = ("spec.planner.algorithm=SizeGreedy", "spec.model.batchSizePerDevice=Auto")
    asked = ("plan", tables, *DEVICES, *(word for each in settings for word in ("--set", each)))
    dense, out = ("--dense", tables.with_name("dense-{batch}.json")), tables.with_name("plan.json")

    result = neuroshard(*asked, *dense, "--out", out)
    explained = neuroshard("explain", out)
    uncounted = neuroshard(*asked)

    assert result.code == 0, result.err
    found = Plan.read(out)
    assert found.batch is not None
    assert found.request.batch_size_per_device in [each.samples_per_device for each in found.batch.tried]
    for text in (result.out, explained.out):
        assert f"chosen of {len(found.batch.tried)} sizes; learning rates are the job's times 8" in text
    assert uncounted.code == ExitCode.INVALID_INPUT
    assert "spec.model.batchSizePerDevice: is chosen with the dense part counted" in uncounted.err


def test_batch_sizes_are_shown_where_the_plan_does_not_fit(neuroshard: Any, tables: Path) -> None:
    """The error stays what it is; the table says which sizes fit."""
    asked = (
        "plan",
        tables,
        *DEVICES,
        "--set",
        "spec.planner.maxMemoryPerDevice=10Gi",
        "--set",
        "spec.planner.algorithm=SizeGreedy",
    )

    result = neuroshard(*asked, "--batch-size", "1048576,1024")
    as_json = neuroshard(*asked, "--batch-size", "1048576,1024", "--json")

    assert (result.code, as_json.code) == (ExitCode.INFEASIBLE, ExitCode.INFEASIBLE)
    assert "does not fit" in result.out
    assert "1,024" in result.out
    assert "no device with memory" in result.err
    assert json.loads(as_json.out)["plan"] is None
    assert json.loads(as_json.out)["batch_sizes"][1]["samples_per_second"] > 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--batch-size", "4096,much"), "--batch-size: is not a number from 1 to"),
        (("--batch-size", "0"), "--batch-size: is not a number from 1 to"),
        (("--batch-size", "64,64"), "--batch-size: has 64 twice"),
        (("--batch-size", ",".join(map(str, range(1, 18)))), "--batch-size: plans at most 16 sizes (found 17)"),
        (("--set", "spec.planner.maxMemoryPerDevice=much"), "spec.planner.maxMemoryPerDevice: must be a size"),
        (("--set", "spec.planner.hostMemoryPerNode=-1Gi"), "spec.planner.hostMemoryPerNode: must be a size"),
        (("--set", "spec.planner.maxMemory"), "'spec.planner.maxMemory' has no value"),
        (("--set", "spec.planner.reservedMemoryPercent=15"), "hint: set spec.planner.maxMemoryPerDevice instead"),
        (("--constraints", "none.yaml"), "none.yaml: does not exist"),
        (("--out", "no/such/folder/plan.json"), "no/such/folder/plan.json: the folder"),
        (("--out", "."), "is a directory"),
        (("--out", "a.html", "--out", "b.html"), "--out: a.html and b.html are both written as .html"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_cannot_be_are_refused(neuroshard: Any, option: tuple[str, ...], words: str) -> None:
    """Before any planning, by the option's name."""
    result = neuroshard("plan", "mlperf-dlrm-dcnv2", *DEVICES, *option)

    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_host_memory_takes_what_device_memory_does_not(neuroshard: Any, tmp_path: Path) -> None:
    """19 GiB of a table on two devices of 6 GiB: the option permits the kernels, and the plan says so."""
    out, file = tmp_path / "plan.json", tmp_path / "tables.csv"
    file.write_text("name,num_embeddings,embedding_dim,pooling_factor\nuser,40000000,128,1\nitem,300000,64,20\n")
    asked = (
        "plan",
        file,
        "--devices",
        "2",
        "--device-type",
        "h100-80gb",
        "--set",
        "spec.planner.maxMemoryPerDevice=6Gi",
        "--set",
        "spec.experimental.planner.workBudget=200",
    )
    assert neuroshard(*asked).code == ExitCode.INFEASIBLE

    result = neuroshard(*asked, "--set", "spec.planner.hostMemoryPerNode=512Gi", "--out", out)

    assert (result.code, "user in host memory; node 0 is the fullest" in result.out) == (0, True)
    assert [each.compute_kernel.is_on_host for each in Plan.read(out).tables] == [True, False]


def test_a_limit_that_nothing_fits_is_infeasible(neuroshard: Any, few_tables: Path) -> None:
    """Three tables of 16 MB do not fit eight times 1 MiB."""
    result = neuroshard("plan", few_tables, *DEVICES, "--set", "spec.planner.maxMemoryPerDevice=1Mi")

    assert (result.code, result.out) == (3, "")


def test_a_device_without_bundle_says_what_there_is(neuroshard: Any) -> None:
    """The B200 has no bundled cost models."""
    result = neuroshard("plan", "criteo-kaggle", "--devices", "8", "--device-type", "b200-180gb")

    assert (result.code, result.out) == (4, "")
    assert "h100-80gb" in result.err


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("weights.safetensors", lambda data: data[:-100]),
        ("weights.safetensors", lambda _: b""),
        ("manifest.json", lambda data: data.replace(b"bundle-manifest/v1", b"bundle-manifest/v9")),
        ("manifest.json", lambda data: data[: len(data) // 2]),
        ("manifest.json", None),
    ],
    ids=["cut weights", "empty weights", "another schema", "cut manifest", "no manifest"],
)
def test_a_damaged_bundle_cannot_be_used(neuroshard: Any, tmp_path: Path, file: str, damage: Any) -> None:
    """The file is named, and how to get a good one."""
    for part in (bundled_root() / "h100-80gb").iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    path = tmp_path / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    result = neuroshard("plan", "criteo-kaggle", *DEVICES, "--bundle", tmp_path)

    assert (result.code, result.out) == (4, "")
    assert all(line.startswith(("error: ", "hint: ")) for line in result.err.splitlines())
    assert file in result.err
    assert "neuroshard pretrain" in result.err


def test_a_plan_with_cost_models_of_another_device_warns(neuroshard: Any, tmp_path: Path) -> None:
    """Bundled ones have a name; the summary says it too."""
    out = tmp_path / "plan.json"

    result = neuroshard("plan", "criteo-kaggle", *DEVICES, "--bundle", "a100-80gb", "--out", out)

    assert result.code == ExitCode.OK
    assert Plan.read(out).warnings[0].startswith("topology.device: ")
    assert "is 'NVIDIA-H100-80GB-HBM3', the cost models of a100-80gb-simulated are of" in " ".join(result.out.split())


def test_a_plan_near_the_one_in_force_says_what_moves(neuroshard: Any, tables: Path) -> None:
    """In the summary and in the explanation; nothing moves where the plan is the best there is."""
    before, after = tables.with_name("before.json"), tables.with_name("after.json")
    neuroshard("plan", tables, *DEVICES, "--out", before)
    result = neuroshard("plan", tables, *DEVICES, "--incumbent", before, "--out", after)
    explained = neuroshard("explain", after)

    assert (result.code, explained.code) == (0, 0)
    assert "under the plan in force; nothing moves" in result.out
    assert "nothing moves" in explained.out
    assert json.loads(neuroshard("explain", after, "--json").out)["moves"]["num_bytes"] == 0
