"""How often the cause of a planted slow-down is named rightly: two real ranks that train, and six faults in turn.

    python -m benchmarks.drift_causes [--minutes MINUTES] [--first-seed SEED] [--under COMMAND] [--starts FILE]

The training is that of the test of causes (tests/trainer/drift/drift_worker.py). Each start learns a reference and goes
through all faults, in an order that its seed gives. ``--under "nice -n -20"`` runs each start with that priority.
``--starts FILE`` keeps what each start named, so that a later call adds starts to those of earlier ones.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results_file import cpu_model, hardware_slug, write_result

TESTS: Final = Path(__file__).parents[1] / "tests"
MINUTES: Final = 20.0
ROUNDS: Final = 2
NOTHING: Final = "nothing"
INPUTS: Final = "inputs"
INPUTS_DRIFTED: Final = "InputsDrifted"
WITHIN_S: Final = 900.0
AIM: Final = 0.95

HEAD = """# Causes of planted slow-downs

Machine: {machine}, two cores; load average of the last minute at the start {start:.1f}, at the end {end:.1f}. {note}
{starts} starts of two ranks over gloo, seeds {first} to {last}. Each start learns a reference of 200 steps, then goes
{rounds} times through each fault in an order that its seed gives: 300 steps with it and 200 without. A fault adds 7 ms
of computation to a step: to rank 1's lookups, forward and backward, and its dense part (device); before the exchange of
pooled embeddings on all ranks (exchange); to the reading of batches (data); to the dense part of all ranks (dense); to
lookups, exchange, and dense part of all ranks (everything); or the table `item` is looked up 40 times as often
(inputs). A fault is named rightly if its last report names its cause with its ranks and tables, and nothing else; a
rest (nothing) if its last report names none. Times are processor time of the training thread: a rank's wait for another
is not in them. Other programs show in them by the caches and memory that they share."""


def trained(seed: int, under: Sequence[str]) -> list[dict[str, Any]]:
    """Return the causes that one start named for each planted fault, and for the rest after it."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", "2"]
        worker = [str(TESTS / "trainer" / "drift" / "drift_worker.py"), folder, str(ROUNDS), str(seed)]
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        subprocess.run([*under, *launch, *worker], check=True, env=environment, timeout=WITHIN_S)  # noqa: S603
        found: list[dict[str, Any]] = json.loads(Path(folder, "found.json").read_text())
        return found


def report(found: Sequence[dict[str, Any]], *, seeds: Sequence[int], start: float, note: str) -> list[str]:
    """Return the result's lines."""
    head = HEAD.format(
        machine=cpu_model(),
        start=start,
        end=os.getloadavg()[0],
        starts=len(seeds),
        first=seeds[0],
        last=seeds[-1],
        note=note,
        rounds=ROUNDS,
    )
    planted = Counter(each["fault"] for each in found)
    right = Counter(each["fault"] for each in found if is_right(each))
    wrong = {
        fault: Counter(words(each["found"]) for each in found if each["fault"] == fault and not is_right(each))
        for fault in planted
    }
    rows = [
        f"| {fault} | {planted[fault]} | {right[fault]} | "
        f"{'; '.join(f'{times} x {name}' for name, times in wrong[fault].items())} |"
        for fault in sorted(planted, key=lambda fault: (fault == NOTHING, fault))
    ]
    faults = [each for each in found if each["fault"] != NOTHING]
    same_inputs = [each for each in found if each["fault"] != INPUTS]
    mistaken = sum(any(cause == INPUTS_DRIFTED for cause, _, _ in each["found"]) for each in same_inputs)
    all_right, aim = sum(map(is_right, faults)), f"aim: {AIM:.0%}"
    return [
        *head.split("\n"),
        "",
        "| fault | planted | named rightly | otherwise named |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Of planted faults {all_right} of {len(faults)} are named rightly ({all_right / len(faults):.1%}; {aim}).",
        f"Inputs were named in {mistaken} of {len(same_inputs)} reports on the same inputs (aim: none).",
    ]


def is_right(each: Mapping[str, Any]) -> bool:
    """Return whether the planted cause alone was named."""
    return bool(each["found"] == each["expected"])


def words(changes: Sequence[Sequence[Any]]) -> str:
    """Return causes with their ranks and tables; of none, that there is none."""
    named = [f"{cause} {[*ranks, *tables] or ''}".rstrip() for cause, ranks, tables in changes]
    return " and ".join(named) or "nothing"


def main() -> None:
    """Plant faults until the minutes are over, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--under", type=shlex.split, default=[], help="command that runs each start")
    parser.add_argument("--note", default="", help="sentence about what else ran on the machine")
    parser.add_argument("--starts", type=Path, help="file with a line for each start, to which this call adds its own")
    options = parser.parse_args()
    start, begun = os.getloadavg()[0], time.monotonic()
    kept = [] if options.starts is None or not options.starts.exists() else options.starts.read_text().splitlines()
    found: list[dict[str, Any]] = [each for line in kept for each in json.loads(line)]
    seeds = [options.first_seed + index for index in range(len(kept))]
    made = 0
    while not made or (time.monotonic() - begun) * (made + 1) / made < 60 * options.minutes:
        seed = options.first_seed + len(seeds)
        named = trained(seed, options.under)
        if options.starts is not None:
            with options.starts.open("a") as file:
                file.write(json.dumps(named) + "\n")
        found += named
        seeds.append(seed)
        made += 1
        lines = report(found, seeds=seeds, start=start, note=options.note)
        print(f"start {len(seeds)}: {lines[-2]} {lines[-1]}", file=sys.stderr)
        path = write_result("drift-causes", lines, hardware=hardware_slug())
    print(path)


if __name__ == "__main__":
    main()
