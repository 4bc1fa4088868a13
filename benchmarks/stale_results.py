"""Which result files are older than the code that they measure, by the history of git.

    python -m benchmarks.stale_results            # all results
    python -m benchmarks.stale_results own-data   # those of a topic, with each changed file

A result is of the code at the commit in which one of its numbers changed last. A Python file has changed since then if
its program has: comments, docstrings, imports, and its name do not count. Other files have changed with any byte.
"""

import argparse
import ast
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"

_SIMULATOR = ("costs/neuroshard_costs/simulator",)
_PRICES = (
    "costs/neuroshard_costs/bundles",
    "costs/neuroshard_costs/networks.py",
    "costs/neuroshard_costs/features.py",
    "costs/neuroshard_costs/exchanges.py",
    "costs/neuroshard_costs/reuse",
    *_SIMULATOR,
)
_SEARCH = (
    "planner/neuroshard_planner/search",
    "planner/neuroshard_planner/searches.py",
    "planner/neuroshard_planner/problem",
    "planner/neuroshard_planner/choices",
    "planner/neuroshard_planner/pipeline.py",
    *_PRICES,
)
_FITTING = (
    "costs/neuroshard_costs/fitting",
    "profiler/neuroshard_profiler/devices",
    "profiler/neuroshard_profiler/benches",
)
_STEP = (
    "trainer/neuroshard_trainer/model",
    "trainer/neuroshard_trainer/sharding",
    "trainer/neuroshard_trainer/measure",
)
_LOOP = ("trainer/neuroshard_trainer/training.py", "trainer/neuroshard_trainer/pipeline.py", *_STEP)
_READING = ("trainer/neuroshard_trainer/data",)
_DRIFT = ("trainer/neuroshard_trainer/drift",)
_CLUSTERING = ("profiler/neuroshard_profiler/sessions",)
_LEDGER = ("planner/neuroshard_planner/problem/memory_ledger.py", "planner/neuroshard_planner/dense")
_GUARD = ("trainer/neuroshard_trainer/communication",)
_OPERATOR = ("operator/neuroshard_operator", "decisions/neuroshard_decisions")
MEASURED: Mapping[str, Sequence[str]] = {
    "command-times": ("planner/neuroshard_planner", "cli/neuroshard_cli/commands/plan.py", "costs/neuroshard_costs"),
    "control-plane-scale": ("tests/cluster",),
    "copied-tables": _SEARCH,
    "device-counts": (*_SEARCH, "python/neuroshard_dlrm/device_counts.py"),
    "deduplication": (*_LOOP, *_READING, *_CLUSTERING),
    "deduplication-choices": ("planner/neuroshard_planner/choices/repeats.py", *_FITTING, *_STEP),
    "deduplication-waits": _READING,
    "dense-memory-error": (*_LEDGER, "trainer/neuroshard_trainer/dense"),
    "dense-search-time": ("planner/neuroshard_planner/dense", "costs/neuroshard_costs/simulator/dense.py"),
    "drift-causes": (*_DRIFT, "trainer/neuroshard_trainer/measure"),
    "drift-detection": ("trainer/neuroshard_trainer/drift/detector.py",),
    "drift-watch-cost": _DRIFT,
    "expansion-copies": ("trainer/neuroshard_trainer/model/expansion.py",),
    "first-runs": (*_FITTING, *_LOOP, *_READING, *_SEARCH, "cli/neuroshard_cli/local"),
    "gpu": (*_FITTING, *_LOOP, *_LEDGER),
    "group-accuracy": ("trainer/neuroshard_trainer/model/averaged_model.py", "trainer/neuroshard_trainer/sharding"),
    "guard-overhead": _GUARD,
    "held-out-placements": (*_SEARCH, "planner/neuroshard_planner/baselines"),
    "host-operations": ("trainer/neuroshard_trainer/pipeline.py", "trainer/neuroshard_trainer/model"),
    "kernel-calibration": _SIMULATOR,
    "kind": ("operator", "charts"),
    "memory-error": ("planner/neuroshard_planner/problem/memory_ledger.py",),
    "mixed-placements": _SEARCH,
    "narrow-choices": _SEARCH,
    "narrow-types": _GUARD,
    "operator-chaos": _OPERATOR,
    "operator-chaos-kind": _OPERATOR,
    "operator-scale": _OPERATOR,
    "optimality": _SEARCH,
    "own-data": (*_READING, "profiler/neuroshard_profiler/data", "trainer/neuroshard_trainer/predict.py"),
    "permitted-forms": _SEARCH,
    "placements": _STEP,
    "plan-times": (*_FITTING, *_STEP),
    "prediction-error": (*_PRICES, "costs/neuroshard_costs/pretrain"),
    "profiler-error": (*_FITTING, "profiler/neuroshard_profiler/backends"),
    "promises": (*_SEARCH, "planner/neuroshard_planner/levers.py"),
    "public-examples": (*_SEARCH, "dropin"),
    "published-memory": _LEDGER,
    "reader-rates": _READING,
    "recovery-time": ("trainer/neuroshard_trainer/state", "trainer/neuroshard_trainer/ranks", *_LOOP),
    "replanned-run": (*_DRIFT, *_SEARCH, "cli/neuroshard_cli/local"),
    "replanning-cluster": (*_DRIFT, *_SEARCH, *_OPERATOR),
    "replanning-control": (*_DRIFT, *_SEARCH, "cli/neuroshard_cli/local"),
    "reporter-overhead": ("trainer/neuroshard_trainer/measure",),
    "robustness": _SEARCH,
    "search-ablation": _SEARCH,
    "search-quality": (*_SEARCH, "planner/neuroshard_planner/baselines"),
    "search-time": _SEARCH,
    "session-clustering": _CLUSTERING,
    "session-order": (
        *_READING,
        *_CLUSTERING,
        "trainer/neuroshard_trainer/training.py",
        "trainer/neuroshard_trainer/metrics.py",
    ),
    "simulator-vs-published": _SIMULATOR,
    "suite-times": (),
    "task-pool": ("planner/neuroshard_planner/workloads",),
    "trainer-speed": (*_LOOP, *_READING),
    "whole-steps": ("costs/neuroshard_costs/host.py", "planner/neuroshard_planner/whole_step.py", *_PRICES),
    "zipf-fit": ("costs/neuroshard_costs/reuse",),
}
"""By the first part of a result's name: the folders and files that decide its numbers. A new topic is named here."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Staleness:
    """What changed since a result was made."""

    name: str
    commit: str
    date: str
    changed: Sequence[str]
    """Measured files that are other ones today."""


def main() -> None:
    """Print a line for each result, those with most changes first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="first part of the results' names; all")
    topics = parser.parse_args().topics
    names = [path.name for path in sorted((ROOT / RESULTS).glob("*.md"))]
    found = [staleness(name) for name in names if not topics or topic_of(name) in topics]
    for each in sorted(found, key=lambda each: -len(each.changed)):
        folders = Counter("/".join(path.split("/")[:3]) for path in each.changed)
        changes = ", ".join(f"{folder} {count}" for folder, count in folders.most_common()) or "nothing"
        print(f"{each.name}: of {each.date}, {each.commit[:8]}; changed: {changes}")
        for path in each.changed if topics else ():
            print(f"  {path}")
    print(f"{sum(bool(each.changed) for each in found)} of {len(found)} results are older than code that they measure")


def topic_of(name: str) -> str:
    """Return the first part of a result's file name."""
    return name.split("_", maxsplit=1)[0]


def staleness(name: str) -> Staleness:
    """Return the changes since a result was made."""
    commit, date = _made_in(f"{RESULTS}/{name}")
    before, now, moved = _files(commit), _files("HEAD"), _moved(commit)
    changed = []
    for path in now:
        if any(path == each or path.startswith(f"{each}/") for each in MEASURED[topic_of(name)]):
            earlier = moved.get(path, path)
            if before.get(earlier) != now[path] and not _is_same_program(before.get(earlier), now[path], path):
                changed.append(path)
    return Staleness(name, commit, date, changed)


def _made_in(path: str) -> tuple[str, str]:
    """Return the last commit in which a number of a result changed, and its day."""
    log = _git("log", "--follow", "--diff-filter=d", "--format=%H %cs", "--name-only", "--", path).split()
    entries = [(commit, date, name) for commit, date, name in zip(log[::3], log[1::3], log[2::3], strict=True)]
    if not entries:
        return "HEAD", "today, not committed"
    numbers = [Counter(_NUMBER.findall(_git("show", f"{commit}:{name}"))) for commit, _, name in entries]
    for (commit, date, _), (new, old) in zip(entries, pairwise([*numbers, Counter()]), strict=True):
        if new != old:
            return commit, date
    return entries[-1][:2]


def _is_same_program(before: str | None, now: str, path: str) -> bool:
    return before is not None and path.endswith(".py") and program(_blob(before)) == program(_blob(now))


def program(text: str) -> str:
    """Return a Python file without comments, docstrings, and imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            node.body = [each for each in node.body if not _says_nothing(each)] or [ast.Pass()]
    return ast.dump(tree)


def _says_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


@cache
def _files(commit: str) -> Mapping[str, str]:
    """Return the object of each file of a commit."""
    lines = _git("ls-tree", "-r", commit).splitlines()
    return {path: kind.split()[2] for kind, path in (line.split("\t", 1) for line in lines)}


@cache
def _moved(commit: str) -> Mapping[str, str]:
    """Return the names that files of today had at a commit, of those that moved."""
    lines = _git("diff", "-M", "--diff-filter=R", "--name-status", commit, "HEAD").splitlines()
    return {new: old for _, old, new in (line.split("\t") for line in lines)}


@cache
def _blob(name: str) -> str:
    return _git("cat-file", "blob", name)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 - git


if __name__ == "__main__":
    main()
