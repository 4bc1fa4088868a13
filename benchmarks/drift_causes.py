"""How often the cause of a planted slow-down is named rightly: two real ranks that train, and five faults in turn.

    python -m benchmarks.drift_causes [MINUTES]

The training is that of the test of causes (tests/trainer/drift_worker.py). Each start learns a reference and goes
through all faults several times, in an order of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results_file import cpu_model, hardware_slug, write_result

TESTS: Final = Path(__file__).parents[1] / "tests"
MINUTES: Final = 15.0
ROUNDS: Final = 2
WITHIN_S: Final = 900.0
AIM: Final = 0.95

HEAD = """# Causes of planted slow-downs

Machine: {machine}, two cores shared with other programs; load average of the last minute at the start {start:.1f}, at
the end {end:.1f}. {starts} starts of two ranks over gloo. Each start learns a reference of 200 steps, then goes
through each fault {rounds} times: 300 steps with it and 200 without, in an order of its own. A fault adds 7 ms of
computation to a step: to rank 1's lookups, forward and backward, and its dense part (device); before the exchange of
pooled embeddings on all ranks (exchange); to the reading of batches (data); to the dense part of all ranks (dense);
or the table `item` is looked up 40 times as often (inputs). Right is the last report of a fault if it names the
fault's cause with its ranks and tables, and nothing else. Times are processor time of the training thread: a rank's
wait for another is not in them."""


def trained(seed: int) -> list[dict[str, Any]]:
    """Return the causes that one start named for each planted fault."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ["-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", "2"]
        worker = [str(TESTS / "trainer" / "drift_worker.py"), folder, str(ROUNDS), str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *worker], check=True, env=environment, timeout=WITHIN_S)  # noqa: S603
        found: list[dict[str, Any]] = json.loads(Path(folder, "found.json").read_text())
        return found


def report(found: Sequence[dict[str, Any]], *, starts: int, start: float) -> list[str]:
    """Return the result's lines."""
    head = HEAD.format(machine=cpu_model(), start=start, end=os.getloadavg()[0], starts=starts, rounds=ROUNDS)
    planted = Counter(each["fault"] for each in found)
    right = Counter(each["fault"] for each in found if each["found"] == each["expected"])
    wrong = {
        fault: Counter(
            words(each["found"]) for each in found if each["fault"] == fault and each["found"] != each["expected"]
        )
        for fault in planted
    }
    rows = [
        f"| {fault} | {count} | {right[fault]} | "
        f"{'; '.join(f'{times} x {name}' for name, times in wrong[fault].items())} |"
        for fault, count in sorted(planted.items())
    ]
    total, all_right = sum(planted.values()), sum(right.values())
    table = ["| fault | planted | named rightly | otherwise named |", "|---|---|---|---|", *rows]
    share = f"In all {all_right} of {total} ({all_right / total:.1%}; aim: {AIM:.0%})."
    return [*head.split("\n"), "", *table, "", share]


def words(changes: Sequence[Sequence[Any]]) -> str:
    """Return causes with their ranks and tables; of none, that there is none."""
    named = [f"{cause} {[*ranks, *tables] or ''}".rstrip() for cause, ranks, tables in changes]
    return " and ".join(named) or "nothing"


def main() -> None:
    """Plant faults until the minutes are over, and write the result."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    start, begun = os.getloadavg()[0], time.monotonic()
    found: list[dict[str, Any]] = []
    starts = 0
    while not starts or (time.monotonic() - begun) * (starts + 1) / starts < 60 * minutes:
        found += trained(seed=starts)
        starts += 1
        print(
            f"start {starts}: {sum(each['found'] == each['expected'] for each in found)} of {len(found)}",
            file=sys.stderr,
        )
    print(write_result("drift-causes", report(found, starts=starts, start=start), hardware=hardware_slug()))


if __name__ == "__main__":
    main()
