"""Specification of pre-training, on runs of a few hundred samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.presets import preset
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.features import compute_features
from neuroshard_costs.networks import CommunicationNetwork, ComputeNetwork
from neuroshard_costs.pretrain.datasets import communication_samples, compute_samples
from rich.progress import Progress

pytestmark = pytest.mark.torch

PARITY_SETS = 10_000


def tiny(out: Path, progress: Progress | None = None, *, seed: int = 0) -> BundleManifest:
    """Train small networks in a few epochs."""
    from neuroshard_costs.pretrain.train import PretrainSettings, pretrain

    settings = PretrainSettings(
        num_compute_samples=100,
        num_communication_samples=200,
        compute_epochs=2,
        communication_epochs=2,
        compute_hidden=(8,),
        num_demands=6,
        num_units=4,
        communication_hidden=(8,),
        seed=seed,
    )
    return pretrain(preset("h100-80gb"), out, settings, progress)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BundleManifest]:
    """Return the folder and the manifest of a run that was not killed."""
    out = tmp_path_factory.mktemp("whole") / "bundle"
    return out, tiny(out)


class Killed(Exception):  # noqa: N818 - what happens, not an error
    """The process ends here."""


class KilledProgress(Progress):
    """A progress bar under which the process is killed after some epochs."""

    def __init__(self, epochs: int) -> None:
        super().__init__(disable=True)
        self._left = epochs

    def update(self, *_: Any, **__: Any) -> None:
        """Count down, then end."""
        self._left -= 1
        if self._left == 0:
            raise Killed


def test_a_run_writes_a_bundle_with_its_errors(whole: tuple[Path, BundleManifest]) -> None:
    """The manifest states source, ranges, hold-out error by groups, settings and versions."""
    import torch
    from neuroshard_costs.pretrain.train import PLOT_FILE

    bundle, manifest = whole
    compute = manifest.networks[0]

    assert load_bundle(bundle).manifest == manifest
    assert manifest.source == "simulated:NVIDIA-H100-80GB-HBM3"
    assert compute.hold_out.num_samples == 10
    assert set(compute.hold_out.mape_by) == {"num_tables", "data_types", "mean_dim", "kind"}
    assert compute.validity["embedding_dim"].high == 512
    assert manifest.training["torch"] == torch.__version__
    assert (bundle / PLOT_FILE).read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("epochs", [1, 6], ids=["compute", "backward"])
def test_a_resumed_run_gives_the_same_bundle(tmp_path: Path, epochs: int, whole: tuple[Path, BundleManifest]) -> None:
    """Wherever a run is killed, the next one ends with the same bytes as a run that was not."""
    with pytest.raises(Killed):
        tiny(tmp_path / "a", KilledProgress(epochs))
    assert tiny(tmp_path / "a") == whole[1]


def test_checkpoints_of_other_settings_are_not_continued(tmp_path: Path, whole: tuple[Path, BundleManifest]) -> None:
    """A run that was killed and started with another seed begins again."""
    with pytest.raises(Killed):
        tiny(tmp_path / "a", KilledProgress(1), seed=1)

    assert tiny(tmp_path / "a") == whole[1]


def test_numpy_computes_what_torch_computes() -> None:
    """On 10,000 random sets of 1 to 20 shards the relative difference stays below 1e-4."""
    import torch
    from neuroshard_costs.pretrain.models import ComputeModel, moments

    random = np.random.default_rng(0)
    pool = compute_samples(preset("h100-80gb"), num_samples=200, seed=5).shards
    features = compute_features(pool)
    set_index = np.repeat(np.arange(PARITY_SETS), random.integers(1, 21, PARITY_SETS))
    members = random.integers(len(pool), size=len(set_index))
    share = random.choice(np.array([0.25, 0.5, 1.0], dtype=np.float32), PARITY_SETS)
    torch.manual_seed(0)
    model = ComputeModel(
        *moments(features), hidden=(64,), num_demands=24, num_units=16, floor_ms=torch.tensor([0.3, 0.45])
    )
    network = ComputeNetwork.from_weights(model.export())
    sums = np.add.reduceat(network.demands(features)[members], np.searchsorted(set_index, np.arange(PARITY_SETS)))
    with torch.no_grad():
        expected = model(
            torch.from_numpy(features[members].astype(np.float32)),
            torch.from_numpy(set_index),
            PARITY_SETS,
            torch.from_numpy(share),
        ).numpy()

    found = network.times_ms(sums, share)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_numpy_computes_what_torch_computes_for_all_to_alls() -> None:
    """The same for 10,000 collectives of 2 to 1,024 devices."""
    import torch
    from neuroshard_costs.pretrain.tasks import CommunicationTask

    samples = communication_samples(preset("h100-80gb"), num_samples=PARITY_SETS, seed=5)
    every = np.arange(PARITY_SETS)
    torch.manual_seed(0)
    task = CommunicationTask(samples, every, direction=0, hidden=(128, 64, 32, 16))
    network = CommunicationNetwork.from_weights(task.model.export())
    with torch.no_grad():
        expected = task.predict(every).numpy()

    np.testing.assert_allclose(network.transfer_ms(samples.max_dim_sum, samples.collectives), expected, rtol=1e-4)
