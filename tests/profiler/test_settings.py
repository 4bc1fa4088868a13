"""Specification of what a profile is asked for."""

import json
from pathlib import Path

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import Optimizer
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.settings import ProfileSettings, job_settings
from support.builders import job_data

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_job_says_how_it_is_profiled() -> None:
    """Two processes of 512 samples each: tables serve 1,024."""
    settings = ProfileSettings(out=Path("out"), **job_settings(EXAMPLES / "02-movielens.yaml", {}))

    assert (settings.backend, settings.device_type, settings.optimizer) == ("fbgemm", None, Optimizer.ROWWISE_ADAGRAD)
    assert (settings.num_nodes, settings.devices_per_node, settings.global_batch_size) == (1, 2, 1024)


def test_a_job_file_that_breaks_its_schema_is_named(tmp_path: Path) -> None:
    """By file and field, as everywhere."""
    path = tmp_path / "job.yaml"
    path.write_text("apiVersion: training.neuroshard.dev/v1alpha1\nkind: DLRMTrainingJob\nspec: {}\n", "utf-8")

    with pytest.raises(DocumentError, match=r"job.yaml: metadata: is missing"):
        job_settings(path, {})


def test_a_device_type_is_a_preset() -> None:
    """A name that is none is refused, with those that are."""
    assert ProfileSettings(out=Path(), device_type="h100-80gb").preset is not None
    with pytest.raises(SettingsError, match=r"'h1' is not known; hint: did you mean h100-80gb\? Otherwise"):
        _ = ProfileSettings(out=Path(), device_type="h1").preset


@pytest.mark.parametrize(
    ("backend", "gpus", "kind"),
    [("Auto", 8, "cuda"), ("FBGEMM", 8, "cuda"), ("Simulated", 8, None), ("Auto", 0, None)],
    ids=["GPUs", "FBGEMM", "simulated", "CPU"],
)
def test_a_job_with_gpus_is_never_profiled_on_a_cpu(tmp_path: Path, backend: str, gpus: int, kind: str | None) -> None:
    """A driver that is too old must end the profile, not turn it into one of a CPU core."""
    trainer = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    data = job_data(profiler={"backend": backend, "deviceType": "h100-80gb"}, trainer=trainer)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(data), encoding="utf-8")

    assert job_settings(path, {})["device_kind"] == kind
