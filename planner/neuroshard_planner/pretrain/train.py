"""Pre-training: samples, fits and hold-out errors of the three cost networks, written as a bundle."""

import hashlib
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from neuroshard_api.bundle import BundleManifest, ErrorReport, Network, Range
from neuroshard_api.presets import DevicePreset
from numpy.typing import NDArray
from rich.progress import Progress

from neuroshard_planner.costs.bundle_store import NETWORK_FEATURES, NetworkName, save_bundle
from neuroshard_planner.costs.features import FEATURE_VERSION, Float32Array
from neuroshard_planner.costs.shards import FloatArray, IndexArray
from neuroshard_planner.pretrain import evaluate
from neuroshard_planner.pretrain.datasets import (
    COMMUNICATION_VALIDITY,
    COMPUTE_VALIDITY,
    MAX_COLUMNS,
    MAX_DEVICES,
    MAX_MEAN_DIM_SUM,
    MAX_SHARDS,
    CommunicationSamples,
    ComputeSamples,
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
    num_compute_samples: int = 80_000
    """Sets of shards; a tenth each validates and is held out."""
    num_communication_samples: int = 60_000
    """All-to-alls; split likewise."""
    compute_epochs: int = 60
    """Most passes over the compute samples."""
    communication_epochs: int = 30
    """Most passes over the communication samples, per direction."""
    batch_size: int = 128
    """Samples per step of the optimizer."""
    learning_rate: float = 1e-2
    """Highest of the schedule."""
    patience: int = 15
    """Epochs without improvement on the validation samples after which a fit stops."""
    compute_hidden: tuple[int, ...] = (64,)
    """Hidden widths of the network that reads one shard."""
    num_demands: int = 24
    """Length of a shard's representation; the search's work grows with it."""
    num_units: int = 16
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
    compute = compute_samples(preset, num_samples=settings.num_compute_samples, seed=settings.seed)
    communication = communication_samples(preset, num_samples=settings.num_communication_samples, seed=settings.seed)
    jobs = (
        _compute_job(compute, settings),
        _communication_job(communication, settings, "forward_communication", direction=0),
        _communication_job(communication, settings, "backward_communication", direction=1),
    )
    parts = {job.name: _fitted(job, settings, scratch, bars) for job in jobs}
    manifest = BundleManifest(
        name=f"{preset.device.name}-simulated",
        source=f"simulated:{preset.device.product}",
        device=preset.device,
        feature_version=FEATURE_VERSION,
        networks=tuple(
            Network(name=name, features=features, hidden=part.hidden, validity=part.validity, hold_out=part.error)
            for (name, features), part in zip(NETWORK_FEATURES.items(), parts.values(), strict=True)
        ),
        weights_sha256="0" * 64,  # replaced when the weights are written
        training={
            **{name: str(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()},
            **{f"{name}_best_epoch": part.best_epoch for name, part in parts.items()},
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    )
    picture = evaluate.plot(
        {name: (part.true_ms, part.predicted_ms) for name, part in parts.items()},
        title=f"{manifest.name}: held-out samples ({manifest.source})",
    )
    weights = {f"{name}.{key}": array for name, part in parts.items() for key, array in part.weights.items()}
    manifest = save_bundle(output, manifest, weights, extras={PLOT_FILE: picture})
    shutil.rmtree(scratch)
    return manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Split:
    """Which samples serve what."""

    train: IndexArray
    validation: IndexArray
    hold_out: IndexArray

    @classmethod
    def of(cls, num_samples: int, seed: int) -> Self:
        """Draw 80 % to train on, 10 % to validate with and 10 % to hold out."""
        order = np.random.default_rng([seed, 2]).permutation(num_samples)
        first, second = round(_TRAIN_SHARE * num_samples), round((_TRAIN_SHARE + _VALIDATION_SHARE) * num_samples)
        return cls(
            train=np.sort(order[:first]), validation=np.sort(order[first:second]), hold_out=np.sort(order[second:])
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One network to fit."""

    name: NetworkName
    task: ComputeTask | CommunicationTask
    split: _Split
    groups: dict[str, NDArray[np.str_]]
    """Labels of all samples, for the error by groups."""
    hidden: tuple[int, ...]
    validity: dict[str, Range]
    max_epochs: int


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


def _compute_job(samples: ComputeSamples, settings: PretrainSettings) -> _Job:
    split = _Split.of(len(samples), settings.seed)
    torch.manual_seed(settings.seed)
    task = ComputeTask(
        samples,
        split.train,
        hidden=settings.compute_hidden,
        num_demands=settings.num_demands,
        num_units=settings.num_units,
    )
    sizes = np.bincount(samples.set_index)
    mean_columns = np.bincount(samples.set_index, weights=samples.shards.num_columns) / sizes
    return _Job(
        name="compute",
        task=task,
        split=split,
        groups={
            "num_tables": evaluate.ranges(sizes, (1, 2, 4, 9, 33, 129, MAX_SHARDS + 1)),
            "mean_dim": evaluate.ranges(mean_columns, (4, 17, 33, 65, 129, 257, MAX_COLUMNS + 1)),
            "kind": np.where(samples.is_model_like, "model-like", "wide"),
        },
        hidden=(*settings.compute_hidden, settings.num_demands, settings.num_units),
        validity=COMPUTE_VALIDITY,
        max_epochs=settings.compute_epochs,
    )


def _communication_job(
    samples: CommunicationSamples, settings: PretrainSettings, name: NetworkName, *, direction: int
) -> _Job:
    split = _Split.of(len(samples), settings.seed)
    torch.manual_seed(settings.seed)
    collectives = samples.collectives
    return _Job(
        name=name,
        task=CommunicationTask(samples, split.train, direction=direction, hidden=settings.communication_hidden),
        split=split,
        groups={
            "num_devices": evaluate.ranges(
                collectives.num_nodes * collectives.devices_per_node, (2, 3, 9, 33, 129, MAX_DEVICES + 1)
            ),
            "mean_dim_sum": evaluate.ranges(collectives.mean_dim_sum, (4, 65, 1025, 16385, int(MAX_MEAN_DIM_SUM) + 1)),
        },
        hidden=settings.communication_hidden,
        validity=COMMUNICATION_VALIDITY,
        max_epochs=settings.communication_epochs,
    )


def _fitted(job: _Job, settings: PretrainSettings, scratch: Path, bars: Progress) -> _Part:
    bar = bars.add_task(job.name, total=job.max_epochs)
    run = hashlib.sha256(repr(settings).encode()).hexdigest()[:12]  # no checkpoint of other settings is continued
    result = fit(
        job.task,
        train=job.split.train,
        validation=job.split.validation,
        settings=FitSettings(
            max_epochs=job.max_epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            patience=settings.patience,
            seed=settings.seed,
        ),
        checkpoint=scratch / f"{job.name}-{run}.pt",
        on_epoch=lambda epoch: bars.update(bar, completed=epoch),
    )
    bars.update(bar, completed=job.max_epochs)
    hold_out = job.split.hold_out
    true_ms, predicted_ms = (
        job.task.targets_ms[torch.from_numpy(hold_out)].double().numpy(),
        predict(job.task, hold_out),
    )
    groups = {name: labels[hold_out] for name, labels in job.groups.items()}
    return _Part(
        hidden=job.hidden,
        weights=job.task.model.export(),
        validity=job.validity,
        error=evaluate.error_report(true_ms, predicted_ms, groups),
        best_epoch=result.best_epoch,
        true_ms=true_ms,
        predicted_ms=predicted_ms,
    )
