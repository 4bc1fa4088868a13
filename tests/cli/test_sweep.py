"""``neuroshard sweep``: the division of devices among variants, and the folder of their jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.job_file import read_job_file
from neuroshard_trainer import dense_profile
from support.builders import job_data
from support.cli.searches import QUICK_WORK

GROUPS: dict[str, Any] = {"planner": {"shardingGroups": {"sizes": [2]}}, "trainer": {"numProcPerNode": 4}}
ALONE: dict[str, Any] = {"training": {"communication": {"policy": "Auto"}}}
"""Parts of a job whose variants do not train together."""
RATES = ("--set", "spec.training.denseLearningRate=0.001,0.002,0.004")
ON_TWO = ("--devices", 2, "--device-type", "h100-80gb")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Return a job of two tables on two devices, whose search is quick."""
    return written(tmp_path / "shop.yaml")


def written(path: Path, *, counts_dense: bool = False, **spec: Any) -> Path:
    """Write a job with these parts of its spec, and a ConfigMap that it does not need."""
    quick = {"workBudget": QUICK_WORK} | ({} if counts_dense else {"denseMemoryPerDevice": "1Mi"})
    own = {"trainer": {"numProcPerNode": 2}, "experimental": {"planner": quick}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"a": "b"}}
    path.write_text(yaml.safe_dump_all([job_data("shop", **own | spec), config_map]))
    return path


def test_each_way_has_the_price_of_the_plans_of_its_parts(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """The least total is chosen, and a job is written for each variant with its part, batch, label, and settings."""
    out = tmp_path / "sweep"

    found = json.loads(neuroshard("sweep", job_file, *ON_TWO, *RATES, "--out", out, "--json").out)
    step_ms = planned_ms(job_file, neuroshard)

    single, whole, *mixed = [way for way in found["ways"] if way["together"] == 1]
    assert single["total_ms"] == pytest.approx(2 * step_ms[1])
    assert whole["total_ms"] == pytest.approx(3 * step_ms[2])
    assert (single["sizes"], whole["sizes"]) == ([1, 1, 1], [2, 2, 2])
    assert single["gain"] == pytest.approx(whole["total_ms"] / single["total_ms"])
    for way in mixed:
        assert sorted(way["sizes"]) == [1, 1, 2]
        assert way["total_ms"] == pytest.approx(step_ms[1] + step_ms[2])
    [chosen] = [way for way in found["ways"] if way["is_chosen"]]
    assert chosen["total_ms"] == min(way["total_ms"] for way in found["ways"])


def planned_ms(job_file: Path, neuroshard: Any) -> dict[int, float]:
    """Return the predicted step of a job on parts of one and of two devices."""
    found = {}
    for count in (1, 2):
        options = ("--devices", count, "--device-type", "h100-80gb", "--batch-size", 2 * 8192 // count)
        found[count] = json.loads(neuroshard("plan", job_file, *options, "--json").out)["step"]["total_ms"]
    return found


def test_a_job_is_written_for_each_variant(tmp_path: Path, neuroshard: Any) -> None:
    """With its part, batch, label, and settings."""
    out = tmp_path / "sweep"
    path = written(tmp_path / "shop.yaml", **ALONE)
    found = json.loads(neuroshard("sweep", path, *ON_TWO, *RATES, "--out", out, "--json").out)

    [chosen] = [way for way in found["ways"] if way["is_chosen"]]
    jobs = [read_job_file(path) for path in sorted(out.glob("*.yaml"))]
    assert [job.job.metadata.name for job in jobs] == ["shop-00", "shop-01", "shop-02"]
    assert [job.job.spec.trainer.world_size for job in jobs] == chosen["sizes"]
    assert [job.job.spec.training.dense_learning_rate for job in jobs] == ["0.001", "0.002", "0.004"]
    for job in jobs:
        assert job.job.spec.model.samples_per_device * job.job.spec.trainer.world_size == 2 * 8192
        assert job.job.metadata.labels == {"training.neuroshard.dev/sweep": "shop"}
        assert set(job.config_maps) == {"other"}
    assert "with 2 variants in one job: spec: variants: the guard of narrow types" in found["without_sets"]


def test_variants_that_outnumber_the_devices_train_together(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """Those that may be in one trainer. A set has the price of its own plan, and the name of its first variant."""
    out = tmp_path / "sweep"
    both = (*RATES, "--set", "spec.training.denseOptimizer=Adam,SGD")
    command = ("sweep", job_file, "--devices", 1, "--device-type", "h100-80gb", *both, "--out", out, "--json")
    found, second = (json.loads(neuroshard(*command).out) for _ in range(2))

    [chosen] = [way for way in found["ways"] if way["is_chosen"]]
    assert (chosen["together"], chosen["sizes"]) == (3, [1, 1])
    assert [path.name for path in sorted(out.glob("*.yaml"))] == ["shop-00.yaml", "shop-01.yaml"]
    job = read_job_file(out / "shop-01.yaml").job
    assert job.spec.training.dense_optimizer == "SGD"
    assert [each.name for each in job.spec.variants or ()] == ["v01", "v03", "v05"]
    plan = json.loads(neuroshard("plan", out / "shop-01.yaml", "--device-type", "h100-80gb", "--json").out)
    assert chosen["total_ms"] == pytest.approx(2 * plan["step"]["total_ms"])
    order = sorted(found["variants"], key=lambda each: each["number"])
    assert [(each["job"], each["variant"]) for each in order] == [
        (f"shop-0{number % 2}", f"v0{number}") for number in range(6)
    ]
    assert second == found


def test_results_of_an_earlier_choice_are_not_those_of_a_job(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """A variant alone has the run directory of the set that it was the first of."""
    out = tmp_path / "sweep"
    command = ("sweep", job_file, "--devices", 1, "--device-type", "h100-80gb", *RATES, "--out", out, "--json")
    metrics = {"normalized_entropy": 0.5, "v00/normalized_entropy": 0.7, "v01/normalized_entropy": 0.5}
    training = out / "runs" / "shop-00" / "train"
    training.mkdir(parents=True)
    (training / "progress.json").write_text(TrainingProgress(step=9, metrics=metrics).to_json())
    together = json.loads(neuroshard(*command).out)["variants"]
    written(job_file, **ALONE)
    alone = json.loads(neuroshard(*command).out)["variants"]

    assert [each["normalized_entropy"] for each in together] == [0.5, 0.7, None]
    assert [(each["job"], each["variant"]) for each in alone] == [(f"shop-0{number}", None) for number in range(3)]
    assert not [each for each in alone if each["normalized_entropy"] or each["step"]]


def test_the_jobs_of_an_earlier_choice_go(tmp_path: Path, neuroshard: Any) -> None:
    """As `kubectl apply` would train their variants twice."""
    path, out = written(tmp_path / "shop.yaml", **ALONE), tmp_path / "sweep"
    command = ("sweep", path, "--devices", 1, "--device-type", "h100-80gb", *RATES, "--out", out)
    assert neuroshard(*command).code == 0
    assert len(list(out.glob("*.yaml"))) == 3
    written(path)
    assert neuroshard(*command).code == 0

    assert [each.name for each in out.glob("*.yaml")] == ["shop-00.yaml"]


def test_the_table_and_the_page_show_gain_and_memory(tmp_path: Path, neuroshard: Any) -> None:
    """The same command again finds the folder as it left it."""
    command = (
        "sweep",
        written(tmp_path / "shop.yaml", counts_dense=True, **ALONE),
        *ON_TWO,
        *RATES,
        "--out",
        tmp_path / "sweep",
    )
    first, second = neuroshard(*command), neuroshard(*command)

    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert "shop: 3 variants on 2 h100-80gb" in first.out
    assert "one after the other on 2" in first.out
    assert first.out.count("chosen") == 1
    assert "of whole steps, predicted (simulated:" in first.out
    assert "shop-00.yaml to shop-02.yaml; `kubectl apply -f" in first.err
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    for text in ("shop-02", "0.004", "one after the other on 2", "simulated"):
        assert text in page


def test_each_distinct_dense_part_is_counted_once(
    tmp_path: Path, neuroshard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each batch size, for variants alone and for all sets of them; rates decide no size."""
    sizes: list[int] = []
    count = dense_profile._counted

    def counted(*arguments: Any, batch_size: int, **named: Any) -> Any:
        sizes.append(batch_size)
        return count(*arguments, batch_size=batch_size, **named)

    monkeypatch.setattr(dense_profile, "_counted", counted)
    monkeypatch.setattr(dense_profile, "_COUNTED", {})
    heads = ("--set", "spec.model.overArchLayerSizes=[8],[4]")
    path = written(tmp_path / "shop.yaml", counts_dense=True)
    neuroshard("sweep", path, *ON_TWO, *RATES, *heads, "--out", tmp_path / "sweep")

    assert sorted(sizes) == [8192, 8192, 16384, 16384]


def test_a_variant_that_needs_all_devices_has_them(tmp_path: Path, neuroshard: Any) -> None:
    """While the others share them; the way that is not possible has the reason."""
    tables = [{"name": "user", "numEmbeddings": 72_000_000, "embeddingDim": 64}]
    path = written(tmp_path / "shop.yaml", model={"embeddingTables": tables})
    widths = ("--set", "spec.model.embeddingTables[*].embeddingDim=64,512")
    result = neuroshard("sweep", path, *ON_TWO, *widths, "--out", tmp_path / "sweep")

    assert result.code == 0
    assert "1 of 2 variants fit" in result.out
    assert [
        read_job_file(tmp_path / "sweep" / f"shop-0{number}.yaml").job.spec.trainer.world_size for number in (0, 1)
    ][1] == 2


def test_parts_that_a_setting_does_not_go_with_are_told(tmp_path: Path, neuroshard: Any) -> None:
    """Groups of two devices are not on a part of two; all four devices have them, and no set of variants has."""
    path = written(tmp_path / "shop.yaml", **GROUPS)
    command = ("sweep", path, "--devices", 4, "--device-type", "h100-80gb", *RATES, "--out", tmp_path / "sweep")
    result = neuroshard(*command)

    assert result.code == 0
    assert "not possible  2 at a time on 2 devices each: spec.planner.shardingGroups.sizes[0]: " in result.out
    assert "one after the other on 4" in result.out
    assert "not possible  variants together in one trainer: " in result.out
    assert result.out.count("not possible") == 5


def test_variants_without_room_are_told(tmp_path: Path, neuroshard: Any) -> None:
    """By the variant and the reason, with the exit code of a plan; the folder stays free for another sweep."""
    tables = [{"name": "user", "numEmbeddings": 10**12, "embeddingDim": 64}]
    path = written(tmp_path / "shop.yaml", model={"embeddingTables": tables})
    result = neuroshard("sweep", path, *ON_TWO, *RATES, "--out", tmp_path / "sweep")
    written(path)
    again = neuroshard("sweep", path, *ON_TWO, "--set", "spec.training.seed=1,2", "--out", tmp_path / "sweep")

    assert (result.code, result.out, again.code) == (3, "", 0)
    assert "variant denseLearningRate=0.001: has no plan on 2 devices: " in result.err
    assert "hint: " in result.err


def test_the_command_for_the_cluster_can_be_copied(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """Also where the folder's name has a space."""
    out = tmp_path / "my sweep"
    result = neuroshard("sweep", job_file, *ON_TWO, *RATES, "--out", out)

    assert f"`kubectl apply -f '{out}'` trains them" in result.err


@pytest.mark.parametrize(
    ("spec", "arguments", "sentence"),
    [
        ({"launchPolicy": "Manual"}, ("--run",), "spec.launchPolicy: is Manual, so that nothing trains by itself"),
        ({"suspend": True}, ("--run",), "spec.suspend: is true"),
        (
            {
                "model": job_data()["spec"]["model"] | {"batchSizePerDevice": "Auto"},
                "experimental": {"planner": {"workBudget": QUICK_WORK}},
            },
            (),
            "spec.model.batchSizePerDevice: is Auto",
        ),
        ({}, ("--device-type", "h100"), "--device-type: "),
        ({}, ("--dense", "missing.json"), "missing.json"),
        (
            {},
            ("--dense", "dense.json", "--set", "spec.model.overArchLayerSizes=[8],[4]"),
            "--dense: was counted for one dense part, and variants differ in spec.model.overArchLayerSizes",
        ),
        ({"planRef": {"name": "plan", "key": "plan.json"}}, (), "spec.planRef: a plan is for one model"),
    ],
)
def test_what_is_wrong_is_named(
    spec: dict[str, Any], arguments: tuple[str, ...], sentence: str, tmp_path: Path, neuroshard: Any
) -> None:
    """With the option or the field, before any training."""
    path = written(tmp_path / "shop.yaml", **spec)
    result = neuroshard("sweep", path, *ON_TWO, *RATES, "--out", tmp_path / "sweep", *arguments)

    assert (result.code, result.out) == (4 if "--bundle" in arguments else 2, "")
    assert sentence in result.err
    assert "hint: " in result.err
    assert not list((tmp_path / "sweep").glob("*.yaml"))


def test_a_job_that_names_no_device_needs_one(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """Where nothing is measured."""
    result = neuroshard("sweep", job_file, "--devices", 2, *RATES, "--out", tmp_path / "sweep")

    assert result.code == 2
    assert "--device-type: is missing" in result.err


def test_a_folder_is_for_one_sweep(job_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """Jobs and runs of others would be mixed with it."""
    out = tmp_path / "sweep"
    other = ("--set", "spec.training.seed=1,2")
    assert neuroshard("sweep", job_file, *ON_TWO, *RATES, "--out", out).code == 0

    second = neuroshard("sweep", job_file, *ON_TWO, *other, "--out", out)
    written(job_file, training={"maxSteps": 9})
    longer = neuroshard("sweep", job_file, *ON_TWO, *RATES, "--out", out)
    (out / "runs" / "shop-00").mkdir()
    written(job_file, training={"embeddingLearningRate": "0.5", "denseLearningRate": "3"})
    faster = neuroshard("sweep", job_file, *ON_TWO, *RATES, "--out", out)
    foreign = neuroshard("sweep", job_file, *ON_TWO, *other, "--out", tmp_path)
    file = neuroshard("sweep", job_file, *ON_TWO, *other, "--out", job_file)

    assert (second.code, foreign.code, file.code) == (2, 2, 2)
    assert "has a sweep of other variants, whose runs" in second.err
    assert (longer.code, faster.code) == (0, 2)
    assert (
        'runs of another job (shop-00 was trained with spec.training.embeddingLearningRate = "0.02", the job has "0.5"'
        in faster.err
    )
    assert "has other files, which `kubectl apply` might take" in foreign.err
    assert "is a file\nhint: give the path of a folder" in file.err
