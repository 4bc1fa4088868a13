"""Pre-training: samples, fits and hold-out errors of the three cost networks, written as a bundle."""

import hashlib
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from neuroshard_api.documents.bundle import BundleManifest, Launch, NetworkName, Range
from neuroshard_api.documents.presets import DevicePreset
from numpy.typing import NDArray
from rich.progress import Progress

from neuroshard_costs.fitting.fitted import FittedNetwork, save_fitted
from neuroshard_costs.fitting.hold_out import Split, error_report, ranges
from neuroshard_costs.pretrain import evaluate
from neuroshard_costs.pretrain.datasets import (
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
from neuroshard_costs.pretrain.fitting import FitSettings, fit, predict
from neuroshard_costs.pretrain.tasks import CommunicationTask, ComputeTask
from neuroshard_costs.shards import DATA_TYPES, IndexArray
from neuroshard_costs.simulator.compute import DEVICE_SECONDS, HOST_SECONDS

PLOT_FILE = "hold_out.png"


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainSettings:
    """Size and length of a training run. The defaults give the bundled bundles, in minutes on one core."""

    seed: int = 0
    """Of samples, first weights and order: equal seeds give equal bundles on equal libraries."""
    num_compute_samples: int = 60_000
    """Sets of shards; a tenth each validates and is held out."""
    num_communication_samples: int = 60_000
    """All-to-alls; split likewise."""
    compute_epochs: int = 40
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

    A killed run continues where it was: it leaves ``<output>.training/`` next to the bundle, which a finished run
    removes.

    Args:
        preset: the device to simulate, with its usual links.
        output: the bundle's directory; one that is there is replaced.
        settings: size and length.
        progress: shows a bar per network. None: silent.
    """
    bars = progress or Progress(disable=True)
    with _scratch(output) as scratch, _reproducible():
        parts = {job.name: _fitted(job, settings, scratch, bars) for job in _jobs(preset, settings)}
    name, source = f"{preset.device.name}-simulated", f"simulated:{preset.device.product}"
    picture = evaluate.plot(
        {network: (part.true_ms, part.predicted_ms) for network, part in parts.items()},
        title=f"{name}: held-out samples ({source})",
    )
    return save_fitted(
        output,
        parts,
        name=name,
        source=source,
        device=preset.device,
        training={
            **{key: str(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()},
            **library_versions(),
        },
        launch=Launch(
            device_ms=(1000 * DEVICE_SECONDS[0], 1000 * DEVICE_SECONDS[1]),
            host_ms=(1000 * HOST_SECONDS[0], 1000 * HOST_SECONDS[1]),
        ),
        extras={PLOT_FILE: picture},
    )


def fit_compute(
    samples: ComputeSamples,
    output: Path,
    settings: PretrainSettings,
    validity: Mapping[str, Range],
    progress: Progress | None = None,
) -> FittedNetwork:
    """Train the compute network alone, on samples of any origin.

    Args:
        samples: a tenth validates, a tenth is held out.
        output: the bundle that the network is for; a killed run continues from ``<output>.training/``.
        settings: size and length.
        validity: the ranges that the samples cover.
        progress: shows a bar. None: silent.
    """
    with _scratch(output) as scratch, _reproducible():
        job = _compute_job(samples, settings, validity)
        return _fitted(job, settings, scratch, progress or Progress(disable=True))


def library_versions() -> dict[str, str]:
    """Return the versions under which equal seeds give equal weights."""
    return {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Make the folder for checkpoints next to the bundle, and remove it unless the work was cut short."""
    scratch = output.with_name(f"{output.name}.training")
    scratch.mkdir(parents=True, exist_ok=True)
    yield scratch
    shutil.rmtree(scratch)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One network to fit."""

    name: NetworkName
    task: ComputeTask | CommunicationTask
    split: Split
    groups: dict[str, NDArray[np.str_]]
    """Labels of all samples, for the error by groups."""
    hidden: tuple[int, ...]
    validity: Mapping[str, Range]
    max_epochs: int


@contextmanager
def _reproducible() -> Iterator[None]:
    """Run torch on one thread, as fast for networks this small and always in one order, with a generator of our own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def _jobs(preset: DevicePreset, settings: PretrainSettings) -> Iterator[_Job]:
    """Yield the networks of a bundle one after the other, so that the samples of one are freed before the next."""
    drawn = compute_samples(preset, num_samples=settings.num_compute_samples, seed=settings.seed)
    yield _compute_job(drawn, settings, COMPUTE_VALIDITY)
    samples = communication_samples(preset, num_samples=settings.num_communication_samples, seed=settings.seed)
    yield _communication_job(samples, settings, "forward_communication", direction=0)
    yield _communication_job(samples, settings, "backward_communication", direction=1)


def _compute_job(samples: ComputeSamples, settings: PretrainSettings, validity: Mapping[str, Range]) -> _Job:
    split = Split.of(len(samples), settings.seed)
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
            "num_tables": ranges(sizes, (1, 2, 4, 9, 33, 129, MAX_SHARDS + 1)),
            "mean_dim": ranges(mean_columns, (4, 17, 33, 65, 129, 257, MAX_COLUMNS + 1)),
            "data_types": np.where(_num_types(samples) > 1, "several", "one"),
            "kind": np.where(samples.is_model_like, "model-like", "wide"),
        },
        hidden=(*settings.compute_hidden, settings.num_demands, settings.num_units),
        validity=validity,
        max_epochs=settings.compute_epochs,
    )


def _num_types(samples: ComputeSamples) -> IndexArray:
    """Return [sets] the data types of each set, which is its number of calls."""
    types = len(DATA_TYPES)
    used = np.bincount(samples.set_index * types + samples.shards.data_type, minlength=len(samples) * types) > 0
    count: IndexArray = used.reshape(-1, types).sum(axis=1)
    return count


def _communication_job(
    samples: CommunicationSamples, settings: PretrainSettings, name: NetworkName, *, direction: int
) -> _Job:
    split = Split.of(len(samples), settings.seed)
    torch.manual_seed(settings.seed)
    collectives = samples.collectives
    return _Job(
        name=name,
        task=CommunicationTask(samples, split.train, direction=direction, hidden=settings.communication_hidden),
        split=split,
        groups={
            "num_devices": ranges(
                collectives.num_nodes * collectives.devices_per_node, (2, 3, 9, 33, 129, MAX_DEVICES + 1)
            ),
            "mean_dim_sum": ranges(collectives.mean_dim_sum, (4, 65, 1025, 16385, int(MAX_MEAN_DIM_SUM) + 1)),
        },
        hidden=settings.communication_hidden,
        validity=COMMUNICATION_VALIDITY,
        max_epochs=settings.communication_epochs,
    )


def _fitted(job: _Job, settings: PretrainSettings, scratch: Path, bars: Progress) -> FittedNetwork:
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
    return FittedNetwork(
        hidden=job.hidden,
        weights=job.task.model.export(),
        validity=job.validity,
        error=error_report(true_ms, predicted_ms, groups),
        notes={"best_epoch": result.best_epoch},
        true_ms=true_ms,
        predicted_ms=predicted_ms,
    )
