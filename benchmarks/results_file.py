"""Result files: a benchmark's lines under a head that says where and how they were made. Measures nothing."""

import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("numpy", "torchrec", "ortools")


def write_result(topic: str, lines: Sequence[str], *, hardware: str | None = None) -> Path:
    """Write ``results/<topic>_<hardware>_<date>.md`` and return its path.

    The head goes below the first line, the title. ``hardware`` None: this machine.
    """
    date = datetime.now(tz=UTC).date().isoformat()
    path = FOLDER / f"{topic}_{hardware or hardware_slug()}_{date}.md"
    head = ["", f"Made by `{_command()}` on {date}, Python {platform.python_version()}, {_versions()}."]
    if hardware is None:
        head.append(f"Machine: {cpu_model()}, {_num_cores()} cores, of which one is used.")
    path.write_text("\n".join([lines[0], *head, *lines[1:], ""]), encoding="utf-8")
    return path


def hardware_slug() -> str:
    """Return a file name's part, such as ``2-core-x86-64``."""
    return f"{_num_cores()}-core-{platform.machine().replace('_', '-')}"


def cpu_model() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _num_cores() -> int:
    import os  # noqa: PLC0415

    return os.cpu_count() or 1


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES)


def _command() -> str:
    name = Path(sys.argv[0]).stem
    return " ".join([f"python -m benchmarks.{name}", *sys.argv[1:]])
