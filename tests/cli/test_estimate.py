"""``neuroshard estimate``: plans on several numbers and kinds of devices."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.builders import job_data, tables
from support.cli.searches import quick

KINDS = ("--device-type", "h100-80gb")
PER_DEVICE = ("--set", "spec.model.batchSizePerDevice=8")


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    """Return a table set of six tables."""
    path = tmp_path / "tables.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": "table-set/v1",
                "name": "six",
                "tables": [each.model_dump(mode="json") for each in tables(6)],
            }
        )
    )
    return path


def test_each_line_is_the_plan_for_these_devices(table_file: Path, tmp_path: Path, neuroshard: Any) -> None:
    """In processes of their own; text and page say the same."""
    page = tmp_path / "counts.html"
    asked = (table_file, "--devices", "1..2,4", "--device-type", "h100-80gb=3/h", "--global-batch-size", "8193")

    found = json.loads(neuroshard("estimate", *asked, "--json").out)
    text = neuroshard("estimate", *asked, "--out", page)

    assert [each["num_devices"] for each in found["points"]] == [1, 2, 4]
    assert [each["samples_per_device"] for each in found["points"]] == [8193, 4097, 2049]
    for point in found["points"]:
        one = ("--devices", point["num_devices"], "--device-type", "h100-80gb")
        planned = json.loads(
            neuroshard("plan", table_file, *one, "--batch-size", point["samples_per_device"], "--json").out
        )
        assert point["plan"]["embedding_ms"] == planned["predicted"]["total_ms"]
        assert point["step_ms"] == pytest.approx(planned["step"]["total_ms"])
        rate = point["num_devices"] * point["samples_per_device"] / point["step_ms"] * 1000
        assert point["price_per_million"] == pytest.approx(point["num_devices"] * 3 / 3600 * 1e6 / rate)
    assert found["least_devices"] == {"h100-80gb": 1}
    assert text.code == 0
    assert "8,193 samples a step on all devices" in text.out
    assert "rounded up to 8,194 on 2 devices, 8,196 on 4 devices" in " ".join(text.out.split())
    assert "(simulated:" in text.out
    assert "<svg" in page.read_text()
    assert "least" not in text.out


def test_a_job_keeps_the_samples_of_all_its_devices(tmp_path: Path, neuroshard: Any) -> None:
    """Unless a batch size per device is given, of which the text says what it means for training."""
    path = tmp_path / "job.json"
    job = job_data(trainer={"numProcPerNode": 2, "numNodes": 2})
    job["spec"]["model"]["batchSizePerDevice"] = 96
    path.write_text(json.dumps(job))

    kept = json.loads(neuroshard("estimate", path, "--devices", "1,2", *KINDS, "--json").out)
    text = neuroshard("estimate", path, "--devices", "1,2", *KINDS, "--set", "spec.model.batchSizePerDevice=64")

    assert kept["global_batch_size"] == 4 * 96
    assert [each["samples_per_device"] for each in kept["points"]] == [384, 192]
    assert "the learning rate has to be chosen again" in text.out
    assert "1 devices" not in text.out


def test_cost_models_of_another_device_are_taken_with_a_warning(neuroshard: Any) -> None:
    """As `neuroshard plan` takes them, where none of the kinds that are asked for is theirs."""
    kind = ("--device-type", "b200-180gb", "--set", "spec.experimental.planner.workBudget=100")
    found = neuroshard("estimate", "criteo-kaggle", "--devices", "1", *kind, "--bundle", "a100-80gb")

    assert (found.code, found.err) == (0, "")
    assert "warning     1 b200-180gb: topology.device: is 'NVIDIA-B200', the cost models of a100-80gb" in found.out


def test_the_batch_size_of_a_setting_is_kept(table_file: Path, neuroshard: Any) -> None:
    """On every number of devices."""
    asked = ("estimate", table_file, "--devices", "1,2", *KINDS, "--json")
    size = ("--set", "spec.model.batchSizePerDevice")

    found = json.loads(neuroshard(*asked, size[0], f"{size[1]}=512").out)
    wrong = neuroshard(*asked, size[0], f"{size[1]}=many")

    assert [each["samples_per_device"] for each in found["points"]] == [512, 512]
    assert wrong.code == 2
    assert "spec.model.batchSizePerDevice: " in wrong.err


def test_devices_without_room_are_told(neuroshard: Any) -> None:
    """Each with the reason; where no number has room, the exit code is that of a plan."""
    found = neuroshard("estimate", "criteo-1tb-uncapped", "--devices", "1", *KINDS)

    assert found.code == 3
    assert "no plan" in found.out
    assert "h100-80gb  fits on none of these numbers; on 1: " in found.out
    assert "criteo-1tb-uncapped: fits on none of these devices" in found.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--devices", "8..4"), "--devices: 8..4 has no numbers"),
        (("--devices", "8,many"), "--devices: is not a list of numbers (found 'many')"),
        (("--devices", "0,8"), "--devices: must be from 1 to 4,096 (found 0)"),
        (("--devices", ",".join(map(str, range(1, 66)))), "--devices: plans at most 64 numbers and kinds (found 65)"),
        (("--device-type", "h100"), "--device-type: "),
        (("--device-type", "h100-80gb=cheap"), "--device-type: h100-80gb has no such price of an hour (found 'cheap')"),
        (("--device-type", f"h100-80gb=1{'0' * 400}"), "--device-type: h100-80gb has no such price of an hour (found"),
        (("--devices", "9"), "--devices: 9 do not fill 2 equal nodes of h100-80gb"),
        (("--device-type", "h100-80gb=0"), "--device-type: h100-80gb has no such price of an hour (found '0')"),
        (("--device-type", "h100-80gb=1,h100-80gb=2"), "--device-type: h100-80gb is given twice"),
        (("--device-type", "h100-80gb=2,a100-80gb"), "--device-type: a100-80gb has no price"),
        ((*PER_DEVICE, "--global-batch-size", "64"), "--global-batch-size: excludes a batch size per device"),
        ((*PER_DEVICE[:1], f"{PER_DEVICE[1]}.5"), "--set spec.model.batchSizePerDevice: is not a number from 1 to"),
        (
            ("--device-type", "h100-80gb,b200-180gb", "--devices", "4"),
            "--device-type: b200-180gb has no bundled cost",
        ),
        (("--bundle", "missing"), "missing"),
        (("--device-type", "b200-180gb"), "--device-type: b200-180gb has no bundled cost"),
        (("--out", "missing/counts.html"), "missing"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], sentence: str, neuroshard: Any) -> None:
    """With what was found, before anything is planned."""
    kinds = () if "--device-type" in arguments else KINDS

    result = neuroshard("estimate", "criteo-kaggle", *kinds, *arguments)

    assert (result.code != 0, result.out) == (True, "")
    assert sentence in result.err
    assert "hint: " in result.err


def test_a_request_is_for_given_devices(tmp_path: Path, neuroshard: Any) -> None:
    """So that a plan's own file is refused, with what to give."""
    path = tmp_path / "plan.json"
    neuroshard("plan", "criteo-kaggle", *quick(1), "--out", path)

    result = neuroshard("estimate", path, "--devices", "1", *KINDS)

    assert result.code == 2
    assert f"{path}: is a request for given devices" in result.err


def test_a_job_whose_plan_chooses_the_batch_needs_one(tmp_path: Path, neuroshard: Any) -> None:
    """Devices would be compared on different trainings."""
    job = job_data()
    job["spec"]["model"]["batchSizePerDevice"] = "Auto"
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))

    result = neuroshard("estimate", path, *KINDS, "--devices", "2")

    assert result.code == 2
    assert "spec.model.batchSizePerDevice: is Auto" in result.err
    assert "hint: give --global-batch-size" in result.err
