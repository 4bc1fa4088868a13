"""Result files: a benchmark's lines under a head that says where and how they were made. Measures nothing."""

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("numpy", "torch", "torchrec", "ortools")


def write_result(
    topic: str, lines: Sequence[str], *, hardware: str | None = None, packages: Sequence[str] = PACKAGES
) -> Path:
    """Write a result below a head, which goes under the first line, the title; return the file's path.

    Args:
        topic: begins the file's name.
        lines: of the result, in Markdown.
        hardware: None: one core of this machine.
        packages: whose versions the head names.
    """
    path = result_path(topic, hardware)
    date = datetime.now(tz=UTC).date().isoformat()
    used = ", ".join((f"Python {platform.python_version()}", *_versions(packages)))
    head = ["", f"Made by `{_command()}` on {date}, {used}."]
    if hardware is None:
        head.append(f"Machine: {cpu_model()}, {_num_cores()} cores, of which one is used.")
        head.append(f"Load average of the last 15 minutes at the end: {os.getloadavg()[2]:.1f}.")
    path.write_text("\n".join([lines[0], *head, *lines[1:], ""]), encoding="utf-8")
    return path


def result_path(topic: str, hardware: str | None = None) -> Path:
    """Return ``results/<topic>_<hardware>_<date>.md``. ``hardware`` None: this machine."""
    return FOLDER / f"{topic}_{hardware or hardware_slug()}_{datetime.now(tz=UTC).date().isoformat()}.md"


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
    return os.cpu_count() or 1


def _versions(packages: Sequence[str]) -> list[str]:
    return [f"{name} {version(name)}" for name in packages]


def _command() -> str:
    script = Path(sys.argv[0])
    name = f"gpu.{script.stem}" if script.parent.name == "gpu" else script.stem
    arguments = (Path(each).name if Path(each).is_absolute() else each for each in sys.argv[1:])  # no machine's paths
    return " ".join([f"python -m benchmarks.{name}", *arguments])
