"""Pre-training: samples, fits and hold-out errors of the three cost networks, written as a bundle."""

import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from neuroshard_api.bundle import BundleManifest, ErrorReport, Network, Range
from neuroshard_api.presets import DevicePreset
from numpy.typing import NDArray
from rich.progress import Progress

from neuroshard_planner.costs.bundle_store import NETWORK_FEATURES, save_bundle
from neuroshard_planner.costs.features import FEATURE_VERSION, Float32Array
from neuroshard_planner.costs.shards import FloatArray, IndexArray
from neuroshard_planner.pretrain import evaluate
from neuroshard_planner.pretrain.datasets import (
    COMMUNICATION_VALIDITY,
    COMPUTE_VALIDITY,
    CommunicationSamples,
    communication_samples,
    compute_samples,
)
from neuroshard_planner.pretrain.fitting import FitSettings, fit, predict
from neuroshard_planner.pretrain.tasks import CommunicationTask, ComputeTask

PLOT_FILE = "hold_out.png"

_TRAIN_SHARE, _VALIDATION_SHARE = 0.8, 0.1  # the rest is held out


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainSettings:
    """Size and length of a training run. The defaults give the bundled bundles, in minutes on one core."""

    seed: int = 0
    """Of samples, first weights and order: equal seeds give equal bundles on equal libraries."""
    num_compute_samples: int = 100_000
    """Sets of shards; a tenth each validates and is held out."""
    num_communication_samples: int = 100_000
    """All-to-alls; split likewise."""
    compute_epochs: int = 60
    """Most passes over the compute samples."""
    communication_epochs: int = 40
    """Most passes over the communication samples, per direction."""
    batch_size: int = 256
    """Samples per step of the optimizer."""
    learning_rate: float = 3e-3
    """Highest of the schedule."""
    patience: int = 15
    """Epochs without improvement on the validation samples after which a fit stops."""
    compute_hidden: tuple[int, ...] = (128, 64)
    """Hidden widths of the network that reads one shard."""
    num_demands: int = 32
    """Length of a shard's representation; the search's work grows with it."""
    num_units: int = 32
    """Units of the head."""
    communication_hidden: tuple[int, ...] = (128, 64, 32, 16)
    """Hidden widths of the communication networks; these are the paper's."""


def pretrain(
    preset: DevicePreset, output: Path, settings: PretrainSettings, progress: Progress | None = None
) -> BundleManifest:
    """Train the cost networks of a simulated device and write them as a bundle directory.

    A killed run continues where it was: it leaves ``<output>.training/`` beside the bundle, which a finished run
    removes.

    Args:
        preset: the device to simulate, with its usual links.
        output: the bundle's directory; one that is there is replaced.
        settings: size and length.
        progress: shows a bar per network. None: silent.
    """
    scratch = output.with_name(f"{output.name}.training")
    scratch.mkdir(parents=True, exist_ok=True)
    bars = progress or Progress(disable=True)
    parts = {"compute": _fit_compute(preset, settings, scratch, bars)}
    communication = communication_samples(preset, num_samples=settings.num_communication_samples, seed=settings.seed)
    for index, name in enumerate(("forward_communication", "backward_communication")):
        parts[name] = _fit_communication(communication, settings, scratch, bars, direction=index, name=name)
    manifest = BundleManifest(
        name=f"{preset.device.name}-simulated",
        source=f"simulated:{preset.device.product}",
        device=preset.device,
        feature_version=FEATURE_VERSION,
        networks=tuple(
            Network(
                name=name,
                features=features,
                hidden=parts[name].hidden,
                validity=parts[name].validity,
                hold_out=parts[name].error,
            )
            for name, features in NETWORK_FEATURES.items()
        ),
        weights_sha256="0" * 64,
        training={
            **{key: str(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()},
            **{f"{name}_best_epoch": part.best_epoch for name, part in parts.items()},
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    )
    weights = {f"{name}.{key}": array for name, part in parts.items() for key, array in part.weights.items()}
    picture = evaluate.plot(
        {name: (part.true_ms, part.predicted_ms) for name, part in parts.items()},
        title=f"{manifest.name}: held-out samples ({manifest.source})",
    )
    manifest = save_bundle(output, manifest, weights, extras={PLOT_FILE: picture})
    shutil.rmtree(scratch)
    return manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One fitted network with its error on the held-out samples."""

    hidden: tuple[int, ...]
    weights: dict[str, Float32Array]
    validity: dict[str, Range]
    error: ErrorReport
    best_epoch: int
    true_ms: FloatArray
    predicted_ms: FloatArray


def _fit_compute(preset: DevicePreset, settings: PretrainSettings, scratch: Path, bars: Progress) -> _Part:
    samples = compute_samples(preset, num_samples=settings.num_compute_samples, seed=settings.seed)
    train, validation, hold_out = _split(len(samples), settings.seed)
    torch.manual_seed(settings.seed)
    task = ComputeTask(
        samples,
        train,
        hidden=settings.compute_hidden,
        num_demands=settings.num_demands,
        num_units=settings.num_units,
    )
    sizes = np.bincount(samples.set_index)
    columns = np.bincount(samples.set_index, weights=samples.shards.num_columns) / sizes
    groups = {
        "num_tables": evaluate.ranges(sizes, (1, 2, 8, 32, 128, 512)),
        "mean_dim": evaluate.ranges(columns, (4, 16, 32, 64, 128, 256, 512)),
        "kind": np.where(samples.is_model_like, "model-like", "wide"),
    }
    return _fitted(
        task,
        (train, validation, hold_out),
        groups=groups,
        name="compute",
        hidden=(*settings.compute_hidden, settings.num_demands, settings.num_units),
        validity=COMPUTE_VALIDITY,
        max_epochs=settings.compute_epochs,
        settings=settings,
        scratch=scratch,
        bars=bars,
    )


def _fit_communication(
    samples: CommunicationSamples,
    settings: PretrainSettings,
    scratch: Path,
    bars: Progress,
    *,
    direction: int,
    name: str,
) -> _Part:
    train, validation, hold_out = _split(len(samples), settings.seed)
    torch.manual_seed(settings.seed)
    task = CommunicationTask(samples, train, direction=direction, hidden=settings.communication_hidden)
    devices = samples.collectives.num_nodes * samples.collectives.devices_per_node
    groups = {
        "num_devices": evaluate.ranges(devices, (1, 2, 8, 32, 128, 1024)),
        "mean_dim_sum": evaluate.ranges(samples.collectives.mean_dim_sum, (4, 64, 1024, 16384, 131072)),
    }
    return _fitted(
        task,
        (train, validation, hold_out),
        groups=groups,
        name=name,
        hidden=settings.communication_hidden,
        validity=COMMUNICATION_VALIDITY,
        max_epochs=settings.communication_epochs,
        settings=settings,
        scratch=scratch,
        bars=bars,
    )


def _fitted(
    task: ComputeTask | CommunicationTask,
    split: tuple[IndexArray, IndexArray, IndexArray],
    *,
    groups: dict[str, NDArray[np.str_]],
    name: str,
    hidden: tuple[int, ...],
    validity: dict[str, Range],
    max_epochs: int,
    settings: PretrainSettings,
    scratch: Path,
    bars: Progress,
) -> _Part:
    train, validation, hold_out = split
    bar = bars.add_task(name, total=max_epochs)
    result = fit(
        task,
        train=train,
        validation=validation,
        settings=FitSettings(
            max_epochs=max_epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            patience=settings.patience,
            seed=settings.seed,
        ),
        checkpoint=scratch / f"{name}.pt",
        on_epoch=lambda epoch, _: bars.update(bar, completed=epoch),
    )
    bars.update(bar, completed=max_epochs)
    true_ms, predicted_ms = task.targets_ms[torch.from_numpy(hold_out)].double().numpy(), predict(task, hold_out)
    return _Part(
        hidden=hidden,
        weights=task.model.export(),
        validity=validity,
        error=evaluate.error_report(true_ms, predicted_ms, {key: labels[hold_out] for key, labels in groups.items()}),
        best_epoch=result.best_epoch,
        true_ms=true_ms,
        predicted_ms=predicted_ms,
    )


def _split(num_samples: int, seed: int) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return the samples to train on, to validate with and to hold out."""
    order = np.random.default_rng([seed, 2]).permutation(num_samples)
    first, second = round(_TRAIN_SHARE * num_samples), round((_TRAIN_SHARE + _VALIDATION_SHARE) * num_samples)
    return np.sort(order[:first]), np.sort(order[first:second]), np.sort(order[second:])
