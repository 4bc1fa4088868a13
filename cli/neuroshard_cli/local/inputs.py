"""What a stage of a run depends on, as text: whatever changes it asks for the stage again."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.spec import Spec
    from neuroshard_api.job.training import Data
    from neuroshard_api.job.training_job import DLRMTrainingJob

MEASURED_WITH = ("neuroshard-operator", "torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchrec")
"""Packages whose versions a profile and a training depend on."""
_LATER_FIELDS = ("session_column", "time_column", "missing")
"""Of the data, in the order in which releases brought them."""


def digest(parts: Sequence[str]) -> str:
    """Return a SHA-256 of texts; different sequences have different ones."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def data_files(root: Path, pattern: str) -> list[str]:
    """Return a line for every file of a path or glob pattern: its name, size and time of change."""
    path = root / pattern
    found = [path] if path.exists() else sorted(root.glob(pattern)) if not os.path.isabs(pattern) else []  # noqa: PTH117 - a pattern, no path
    files = [each for top in found for each in ([top] if top.is_file() else sorted(top.rglob("*"))) if each.is_file()]
    return [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]


def data_root(job_file: Path, data: "Data") -> Path:
    """Return the folder in which relative paths of a job's data begin: the file's, or else the current one."""
    folder, current = job_file.absolute().parent, Path.cwd()
    return current if data.path is not None and not _has(folder, data.path) and _has(current, data.path) else folder


def _has(root: Path, pattern: str) -> bool:
    """Return whether a path or glob pattern names something."""
    return (root / pattern).exists() or (not os.path.isabs(pattern) and any(root.glob(pattern)))  # noqa: PTH117 - as above


def machine() -> list[str]:
    """Return the facts that identify this machine, as far as they are known without a device's libraries."""
    system = os.uname()
    return [system.nodename, system.release, system.machine, str(os.cpu_count())]


def versions() -> list[str]:
    """Return the installed versions of what measures, plans and trains."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in MEASURED_WITH:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def profile_inputs(spec: "Spec", tables: "TableSet") -> str:
    """Return a digest of what a profile of this machine depends on."""
    sizes = map(str, (spec.model.samples_per_device, spec.trainer.devices_per_node))
    settings = spec.profiler.model_dump_json(exclude={"policy"})
    return digest([settings, *sizes, tables.to_json(), *machine(), *versions()])


def training_facts(job: "DLRMTrainingJob", tables: "TableSet", files: Sequence[str]) -> dict[str, str]:
    """Return the facts that a training in a run directory shares with its continuation, by the job's field.

    In addition to what every continuation must: the settings that decide which samples are read, and the files that
    hold them. A field that came with a later release counts only where it is set, for trainings are kept over
    upgrades. To leave out repeated lists changes no sample, and neither does the check of constant ones.

    Args:
        job: that trains.
        tables: of its model.
        files: a line for each file of its data (see data_files).
    """
    from neuroshard_api.job.continuation import continuation_facts

    spec = job.spec
    unset = {name for name in _LATER_FIELDS if getattr(spec.data, name) == type(spec.data).model_fields[name].default}
    samples = spec.data.model_dump(
        mode="json",
        by_alias=True,
        exclude={"deduplication", "constant_in_session", "format", "shuffle", *unset},
    )
    drawn = spec.experimental.data.model_dump(
        mode="json", by_alias=True, include={"session_run", "synthetic_sessions"}, exclude_defaults=True
    )
    drift = [each.model_dump(mode="json", by_alias=True) for each in spec.experimental.synthetic_drift or ()]
    values = {
        **{f"spec.data.{name}": value for name, value in samples.items()},
        **{f"spec.experimental.data.{name}": value for name, value in drawn.items()},
        **({"spec.experimental.syntheticDrift": drift} if drift else {}),
        **({"the files of spec.data": f"{len(files)} of digest {digest(files)[:12]}"} if files else {}),
    }
    if spec.data.path is None:  # samples are drawn by the statistics of the tables
        values["the statistics of spec.model.embeddingTables"] = digest([tables.to_json()])[:12]
    facts = {field: json.dumps(value) for field, value in values.items()}
    return {**continuation_facts(job, tables.tables), **facts}
