"""What a stage of a run depends on, as text: whatever changes it asks for the stage again."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import Spec

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


def samples_text(spec: "Spec") -> str:
    """Return the settings that decide which samples a training reads, and their order, as JSON.

    A field that came with a later release counts only where it is set, for trainings are kept over upgrades. To leave
    out repeated lists changes no sample, and neither does the check of constant ones.
    """
    data, drawn = spec.data, spec.experimental.data
    unset = {name for name in _LATER_FIELDS if getattr(data, name) == type(data).model_fields[name].default}
    samples = data.model_dump_json(exclude={"deduplication", "constant_in_session", *unset})
    order = drawn.model_dump_json(include={"session_run", "synthetic_sessions"}, exclude_defaults=True)
    return f"{samples}\n{order}"
