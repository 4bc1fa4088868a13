"""The result file of a suite: what held on a cluster, what did not and what was skipped, and on which machine."""

import contextlib
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.folders import Home

WORDS = {"passed": "holds", "failed": "DOES NOT HOLD", "skipped": "skipped", "rerun": "failed, again"}
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One test: file and name, the sentence that it checks, its outcome in pytest's words, and why it was skipped."""

    test: str
    sentence: str
    outcome: str
    seconds: float
    reason: str = ""

    @property
    def line(self) -> str:
        """The row for a terminal."""
        return f"{WORDS[self.outcome]:14} {self.seconds:6.1f} s  {self.sentence}{self.reason and f' ({self.reason})'}"

    @property
    def cells(self) -> str:
        """The row for a Markdown table."""
        outcome = WORDS[self.outcome] + (f": {self.reason}" if self.reason else "")
        return f"| {self.test} | {self.sentence} | {outcome} | {self.seconds:.1f} |".replace("\n", " ")


def readable(test: str) -> str:
    """Return file and name of a pytest node as words: `lifecycle: a job rests [Running]`."""
    file, _, name = test.rpartition("::")
    words = name.removeprefix("test_").replace("_", " ").replace("[", " [")
    return f"{Path(file).stem.removeprefix('test_')}: {words}"


def report(cluster: Cluster, home: Home, rows: Sequence[Row], *, title: str, command: str, seconds: float) -> str:
    """Return the result file: where and how, one row for each test, times, disk and memory."""
    counted = {word: sum(row.outcome == outcome for row in rows) for outcome, word in WORDS.items()}
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Command: `{command}`, {datetime.now(tz=UTC).date().isoformat()}.",
            (
                f"Machine: {os.cpu_count()} cores, {_memory_gib():.0f} GiB of memory, Linux {platform.release()},"
                f" load average at the end {os.getloadavg()[1]:.1f}."
            ),
            f"Cluster: {_nodes(cluster)}.",
            f"Tests: {', '.join(f'{count} {word}' for word, count in counted.items())}; {seconds:.0f} s.",
            (
                f"Disk: {disk_bytes(home.root) / GIB:.1f} GiB below the clusters' home folder, caches included;"
                f" {shutil.disk_usage(home.root).free / GIB:.0f} GiB free."
            ),
            f"Memory: {_used_gib():.1f} GiB used on the machine at the end.",
            "",
            "| test | what | outcome | s |",
            "|---|---|---|---|",
            *(row.cells for row in rows),
            "",
        ]
    )


def _nodes(cluster: Cluster) -> str:
    try:
        nodes = cluster.kubectl.list("nodes")
    except ClusterError as error:  # what was tested is worth more than where
        return f"its nodes cannot be asked, {str(error).splitlines()[0]}"
    known = [node["status"]["nodeInfo"] for node in nodes]
    versions = {f"Kubernetes {each['kubeletVersion']}, {each['containerRuntimeVersion']}" for each in known}
    images = {each["osImage"] for each in known}
    return f"{len(nodes)} nodes, {'; '.join(sorted(versions))}; node image: {', '.join(sorted(images))}"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def _used_gib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) / 2**20


def disk_bytes(folder: Path) -> int:
    """Return the bytes on disk below `folder`, hard links once, without what is mounted there.

    Files that others delete meanwhile do not count.
    """
    device = folder.stat().st_dev
    seen: dict[int, int] = {}
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if _status(Path(place) / name, device) is not None]
        for name in files:
            found = _status(Path(place) / name, device)
            if found is not None:
                seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def _status(path: Path, device: int) -> os.stat_result | None:
    """Return the status of a file or folder of a device; None where it is gone or elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return found if found.st_dev == device else None
    return None
