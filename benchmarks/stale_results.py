"""Which result files are older than the code that they measure, by the history of git.

    python -m benchmarks.stale_results            # all results
    python -m benchmarks.stale_results own-data   # those of a topic, with each changed file

A result is of the code at the commit in which one of its numbers changed last. A Python file has changed since then if
a function, class, or other statement of it is another one than all of its name. Comments, docstrings, imports,
annotations of arguments, and messages do not count, nor does the file that a definition is in, nor a new name: what
calls it has changed too, or did not run. Other files have changed with any byte.
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
from typing import Self

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"

_SIMULATOR = ("costs/neuroshard_costs/simulator",)
_REUSE = ("costs/neuroshard_costs/reuse/hit_counts.py", "costs/neuroshard_costs/reuse/shard_arrays.py")
_PRICES = (
    "costs/neuroshard_costs/bundles",
    "costs/neuroshard_costs/networks.py",
    "costs/neuroshard_costs/features.py",
    "costs/neuroshard_costs/exchanges.py",
    "costs/neuroshard_costs/reuse",
    *_SIMULATOR,
)
_SEARCH = (
    "planner/neuroshard_planner/bound",
    "planner/neuroshard_planner/search",
    "planner/neuroshard_planner/searches.py",
    "planner/neuroshard_planner/problem",
    "planner/neuroshard_planner/choices",
    "planner/neuroshard_planner/pipeline.py",
    *(
        f"costs/neuroshard_costs/{name}.py"
        for name in ("averages", "curve_hull", "cuts", "deduplication", "host_tables")
    ),
    *(f"costs/neuroshard_costs/{name}.py" for name in ("memory_ledger", "memory_reserve", "step_cost")),
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
_READ_FROM = (
    *("arrays", "collation", "criteo", "criteo_binary", "criteo_lines", "csv_lines", "csv_source", "files"),
    *("id_columns", "id_rules", "line_index", "missing", "npz", "order", "parquet", "parquet_statistics"),
    *("preprocessing", "samples", "source", "text_hashes", "unpack"),
)
_DRIFT = ("trainer/neuroshard_trainer/drift",)
_CLUSTERING = ("profiler/neuroshard_profiler/sessions",)
_LEDGER = ("costs/neuroshard_costs/memory_ledger.py", "dense/neuroshard_dense")
_GUARD = ("trainer/neuroshard_trainer/communication",)
_OPERATOR = ("operator/neuroshard_operator", "decisions/neuroshard_decisions")
MEASURED: Mapping[str, Sequence[str]] = {
    "command-times": (
        *("planner/neuroshard_planner", "dense/neuroshard_dense", "costs/neuroshard_costs"),
        "cli/neuroshard_cli/commands/plan.py",
    ),
    "copied-tables": _SEARCH,
    "sweep-choice": (
        "report/neuroshard_report/explain/divisions.py",
        "python/neuroshard_dlrm/sweeps.py",
        "python/neuroshard_dlrm/variant_sets.py",
        *_SEARCH,
    ),
    "variants": (
        "trainer/neuroshard_trainer/variants.py",
        "trainer/neuroshard_trainer/model/variant_model.py",
        *_LOOP,
    ),
    "rpc-server": ("trainer/neuroshard_trainer/servers/model.py",),
    "server-choice": ("planner/neuroshard_planner/servers.py", "costs/neuroshard_costs/served_cost.py", *_SEARCH),
    "server-lookahead": ("trainer/neuroshard_trainer/servers", *_LOOP),
    "server-times": (
        "costs/neuroshard_costs/served_cost.py",
        "costs/neuroshard_costs/servers.py",
        "trainer/neuroshard_trainer/servers",
        *_FITTING,
    ),
    "anomaly-detection": tuple(
        f"{_DRIFT[0]}/{name}.py" for name in ("columns", "detector", "input_statistics", "labels", "rise")
    ),
    "device-counts": (*_SEARCH, "python/neuroshard_dlrm/device_counts.py"),
    "deduplication": _LOOP,
    "deduplication-choices": ("planner/neuroshard_planner/choices/repeats.py", *_FITTING, *_STEP),
    "deduplication-waits": _READING,
    "dense-memory-error": (*_LEDGER, "trainer/neuroshard_trainer/dense"),
    "dense-search-time": ("dense/neuroshard_dense", "costs/neuroshard_costs/simulator/dense.py"),
    "drift-causes": (*_DRIFT, "trainer/neuroshard_trainer/measure"),
    "drift-detection": ("trainer/neuroshard_trainer/drift/detector.py",),
    "drift-watch-cost": _DRIFT,
    "expansion-copies": ("trainer/neuroshard_trainer/model/expansion.py",),
    "first-runs": (*_FITTING, *_LOOP, *_READING, *_SEARCH, "cli/neuroshard_cli/local"),
    "gpu": (*_FITTING, *_LOOP, *_LEDGER),
    "group-accuracy": ("benchmarks/group_accuracy.py", "api/neuroshard_api/sharding/replication.py"),
    "guard-overhead": _GUARD,
    "held-out-placements": (*_SEARCH, "planner/neuroshard_planner/baselines"),
    "host-operations": ("benchmarks/host_operations.py",),
    "kernel-calibration": _SIMULATOR,
    "kind": ("operator", "charts"),
    "long-searches": _SEARCH,
    "memory-error": ("costs/neuroshard_costs/memory_ledger.py",),
    "mixed-placements": _SEARCH,
    "narrow-choices": _SEARCH,
    "narrow-types": _GUARD,
    "never-dearer": (*_SEARCH, "benchmarks/reference_search.py"),
    "shard-overhead": ("benchmarks/shard_overhead.py", "trainer/neuroshard_trainer/dense/parallel.py"),
    "dense-throughput": (*_LEDGER, "costs/neuroshard_costs", "trainer/neuroshard_trainer/dense"),
    "slow-link": (*_GUARD, *_PRICES, "profiler/neuroshard_profiler/benches"),
    "sparse-exchange": (*_GUARD, "benchmarks/narrow_types.py"),
    "operator-chaos": _OPERATOR,
    "operator-chaos-kind": _OPERATOR,
    "operator-scale": _OPERATOR,
    "optimality": _SEARCH,
    "own-data": (*_READING, "profiler/neuroshard_profiler/data", "trainer/neuroshard_trainer/predict.py"),
    "permitted-forms": _SEARCH,
    "placements": (
        "trainer/neuroshard_trainer/dense/optimizers.py",
        "trainer/neuroshard_trainer/model/sharded_model.py",
        "trainer/neuroshard_trainer/sharding",
    ),
    "plan-times": (*_FITTING, *_STEP),
    "prediction-error": (*_PRICES, "costs/neuroshard_costs/pretrain"),
    "profiler-error": (*_FITTING, "profiler/neuroshard_profiler/backends"),
    "promises": (*_SEARCH, "planner/neuroshard_planner/levers.py"),
    "public-ablation": _SEARCH,
    "public-examples": (*_SEARCH, "dropin"),
    "published-memory": _LEDGER,
    "reader-rates": tuple(f"{_READING[0]}/{name}.py" for name in _READ_FROM),
    "recovery-time": ("trainer/neuroshard_trainer/state", "trainer/neuroshard_trainer/ranks", *_LOOP),
    "replanned-run": (*_DRIFT, *_SEARCH, "cli/neuroshard_cli/local"),
    "replanning-cluster": (*_DRIFT, *_SEARCH, *_OPERATOR),
    "replanning-control": (*_DRIFT, *_SEARCH, "cli/neuroshard_cli/local"),
    "reporter-overhead": ("trainer/neuroshard_trainer/measure",),
    "robustness": _SEARCH,
    "search-ablation": _SEARCH,
    "search-checkouts": _SEARCH,
    "search-quality": (*_SEARCH, "planner/neuroshard_planner/baselines"),
    "search-time": _SEARCH,
    "session-clustering": _CLUSTERING,
    "session-reading": (*_READING, *_CLUSTERING),
    "session-order": (
        *_READING,
        *_CLUSTERING,
        "trainer/neuroshard_trainer/training.py",
        "trainer/neuroshard_trainer/metrics.py",
    ),
    "simulator-vs-published": _SIMULATOR,
    "suite-times": (),
    "task-pool": ("benchmarks/tasks.py", *_REUSE),
    "trainer-speed": _LOOP,
    "whole-steps": ("costs/neuroshard_costs/host.py", "dense/neuroshard_dense/whole_step.py", *_PRICES),
    "zipf-fit": _REUSE,
}
"""By the first part of a result's name: the folders and files that decide its numbers. A new topic is named here."""
_PROSE = re.compile(r"[a-z]+,? [a-z]+,? [a-z]+")
"""Three words in a row are for people: SQL, names, and formats have none."""
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
    asked = [name for name in names if not topics or topic_of(name) in topics]
    with History(ROOT) as history:
        found = [staleness(name, MEASURED[topic_of(name)], history) for name in asked]
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


def staleness(name: str, measured: Sequence[str], history: "History") -> Staleness:
    """Return the changes of measured folders and files since a result was made."""
    commit, date = history.made_in(f"{RESULTS}/{name}")
    now = {
        path: blob
        for path, blob in history.files("HEAD").items()
        if any(path == each or path.startswith(f"{each}/") for each in measured)
    }
    return Staleness(name, commit, date, [path for path in now if history.is_other(path, now[path], commit)])


def definitions(text: str) -> Mapping[str, str]:
    """Return the name of each definition of a Python file, by its program. Other statements have the name "".

    A program is without comments, docstrings, imports, annotations of arguments, and messages. Methods of a class
    without bases are definitions of their own; those of others may override what is defined elsewhere.
    """
    tree: ast.Module = _Program().visit(ast.parse(text))
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.bases:
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{ast.dump(each)}": f"{node.name}.{each.name}" for each in methods}
            node.body = [each for each in node.body if each not in methods]
        if not isinstance(node, ast.Pass):
            found[ast.dump(node)] = _name(node)
    return found


class _Program(ast.NodeTransformer):
    """Removes what people read, and what only type checkers do."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            node.body = [each for each in node.body if not _says_nothing(each)] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) and _PROSE.search(node.value) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        texts = (each.value for each in node.values if isinstance(each, ast.Constant) and isinstance(each.value, str))
        return ast.Constant("") if _PROSE.search("_".join(texts)) else self.generic_visit(node)


def _says_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def _name(node: ast.stmt) -> str:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


class History:
    """The commits of a checkout. One process reads all objects, for as long as the context lasts."""

    def __init__(self, root: Path) -> None:
        """Take the folder of a checkout."""
        self._root = root

    def __enter__(self) -> Self:
        command = ["git", "cat-file", "--batch"]
        self._objects = subprocess.Popen(  # noqa: S603 - git
            command, cwd=self._root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._objects.communicate()

    def made_in(self, path: str) -> tuple[str, str]:
        """Return the last commit in which a number of a result changed, and its day."""
        log = self._git("log", "--follow", "--diff-filter=d", "--format=%H %cs", "--name-only", "--", path).split()
        entries = [(commit, date, name) for commit, date, name in zip(log[::3], log[1::3], log[2::3], strict=True)]
        if not entries:
            return "HEAD", "today, not committed"
        numbers = [Counter(_NUMBER.findall(self._git("show", f"{commit}:{name}"))) for commit, _, name in entries]
        for (commit, date, _), (new, old) in zip(entries, pairwise([*numbers, Counter()]), strict=True):
            if new != old:
                return commit, date
        return entries[-1][:2]

    def is_other(self, path: str, blob: str, commit: str) -> bool:
        """Whether a file of today is another one than at a commit, under this or any other name."""
        before = self.files(commit)
        if blob in before.values():
            return False
        if not path.endswith(".py"):
            return True
        earlier = self._definitions(before[path]) if path in before else {}
        return any(
            self._is_other_definition(program, name, commit)
            for program, name in self._definitions(blob).items()
            if program not in earlier
        )

    def _is_other_definition(self, program: str, name: str, commit: str) -> bool:
        """Whether a definition of today is another one than all of its name at a commit."""
        own_name = name.rpartition(".")[2]
        found = [self._definitions(blob) for blob in self._gone(commit) if name and own_name in self._text(blob)]
        return not any(program in each for each in found) and (not name or any(name in each.values() for each in found))

    @cache  # noqa: B019 - lives as long as the process
    def files(self, commit: str) -> Mapping[str, str]:
        """Return the object of each file of a commit."""
        lines = self._git("ls-tree", "-r", commit).splitlines()
        return {path: kind.split()[2] for kind, path in (line.split("\t", 1) for line in lines)}

    @cache  # noqa: B019 - lives as long as the process
    def _gone(self, commit: str) -> Sequence[str]:
        """Return the Python files of a commit that are other ones today."""
        now = set(self.files("HEAD").values())
        return [blob for path, blob in self.files(commit).items() if path.endswith(".py") and blob not in now]

    @cache  # noqa: B019 - lives as long as the process
    def _definitions(self, blob: str) -> Mapping[str, str]:
        return definitions(self._text(blob))

    @cache  # noqa: B019 - lives as long as the process
    def _text(self, blob: str) -> str:
        pipe = self._objects
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        pipe.stdin.write(f"{blob}\n".encode())
        pipe.stdin.flush()
        num_bytes = int(pipe.stdout.readline().split()[2])
        return pipe.stdout.read(num_bytes + 1).decode()

    def _git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    main()
