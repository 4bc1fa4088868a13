"""The result file of a suite: what held on a cluster, what did not and what was skipped, and on which machine."""

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.folders import Home

WORDS = {"passed": "holds", "failed": "DOES NOT HOLD", "skipped": "skipped"}
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
    nodes = cluster.kubectl.list("nodes")
    information = [node["status"]["nodeInfo"] for node in nodes]
    counted = {word: sum(row.outcome == outcome for row in rows) for outcome, word in WORDS.items()}
    versions = sorted(
        {f"Kubernetes {info['kubeletVersion']}, {info['containerRuntimeVersion']}" for info in information}
    )
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Command: `{command}`, {datetime.now(tz=UTC).date().isoformat()}.",
            (
                f"Machine: {os.cpu_count()} cores, {_memory_gib():.0f} GiB of memory, Linux {platform.release()},"
                f" load average at the end {os.getloadavg()[1]:.1f}."
            ),
            f"Cluster: {len(nodes)} nodes, {'; '.join(versions)}; node image: {information[0]['osImage']}.",
            f"Tests: {', '.join(f'{count} {word}' for word, count in counted.items())}; {seconds:.0f} s.",
            (
                f"Disk: {_size(home.root) / GIB:.1f} GiB below the clusters' home folder, caches included;"
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


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def _used_gib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) / 2**20


def _size(folder: Path) -> int:
    """Return the bytes on disk below `folder`, hard links once."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, files in os.walk(folder):
        for name in files:
            found = os.lstat(Path(place) / name)
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())
