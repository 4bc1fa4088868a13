"""What a run's documents carry: where its numbers come from, the plan, and torchrun's id."""

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from neuroshard_api.documents.document import read_bytes
from neuroshard_api.job.stage_commands import RUN_ID_VARIABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """One run under one plan."""

    source: str
    """Label of what is measured: ``measured:`` or ``cpu:``, and the device."""
    plan_sha256: str
    run_id: str | None = None
    """None: torchrun did not start it."""

    @classmethod
    def of(cls, device: torch.device, plan_file: Path) -> "RunIdentity":
        """Return this process's run. Raises DocumentError."""
        return cls(
            source=device_source(device), plan_sha256=file_sha256(plan_file), run_id=os.environ.get(RUN_ID_VARIABLE)
        )


def file_sha256(path: Path) -> str:
    """Return the hash of what a file holds, compressed or not, as reports and checkpoints name a plan.

    Raises DocumentError.
    """
    return hashlib.sha256(read_bytes(path)).hexdigest()


def device_source(device: torch.device) -> str:
    """Return the label of what is measured on a device: ``measured:`` for a GPU, ``cpu:`` for a CPU."""
    if device.type == "cuda":
        return f"measured:{torch.cuda.get_device_name(device)}"
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return f"cpu:{found[1].strip() if found else platform.machine() or 'unknown'}"
