"""How often the cause of a planted slow-down is named rightly: two real ranks that train, and six faults in turn.

    python -m benchmarks.drift_causes [--starts STARTS] [--first-seed SEED] [--kept FILE]

The training is that of the test of causes (tests/trainer/drift/drift_worker.py), by the trainer's own clock. The two
ranks of a start share one core, which is a load of 2 per core; as many starts run at once as this process may use
cores: 15 minutes on two that are idle, and 30 on one (``taskset -c 1 python -m ...``). Each start learns a reference,
and goes through rounds of undisturbed training and all faults in an order that its seed gives.
``--kept FILE`` keeps what each start named, so that a later call adds starts to those of earlier ones.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Final

from benchmarks.results_file import cpu_model, hardware_slug, write_result

TESTS: Final = Path(__file__).parents[1] / "tests"
STARTS: Final = 5
ROUNDS: Final = 4
"""Of each start: with 5 starts, 120 faults and 20 quiet runs."""
QUIET_STEPS: Final = 600
NOTHING, QUIET = "nothing", "quiet"
INPUTS, INPUTS_DRIFTED, UNEXPLAINED = "inputs", "InputsDrifted", "Unexplained"
WITHIN_REPORTS: Final = 2
WITHIN_S: Final = 3600.0
AIM: Final = 0.95

HEAD = """# Causes of planted slow-downs

Machine: {machine}. The two ranks of a start shared one core, which is a load of 2 per core; {num_cores} of the
{all_cores} cores had a start each. Load average of the last minute {loads} at the ends of the starts (median
{middle:.1f}; above 2 for each start by other programs). Ranks waited for a processor for {waits} of the time in which
they could run (median {wait:.0%}). {starts} starts of two ranks over gloo, seeds {first} to {last}, timed by the
trainer's own clock. Each start learns a reference of 200 steps. {rounds} times it trains {quiet} steps with nothing
planted (a quiet run), and goes through each fault in an order that its seed gives: 300 steps with it and 200 without.
A fault adds {extra} ms of computation to a step: to rank 1's lookups, forward and backward, and its dense part
(device); before the exchange of pooled embeddings on all ranks (exchange); to the reading of batches (data); to the
dense part of all ranks (dense); to lookups, exchange, and dense part of all ranks (everything); or the table `item` is
looked up 240 times as often (inputs), which takes
about as long.

A fault is named rightly if the first cause of its last report is the planted one with its ranks and tables. More causes
are those that the report names after it: other programs come and go, and the steps are in fact slower by them too."""
EXTRA_MS: Final = 4
"""As in drift_worker.py."""


def trained(seed: int) -> list[dict[str, Any]]:
    """Return the causes that one start named for each planted fault, and for the rest after it."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", "2"]
        numbers = map(str, (ROUNDS, seed, QUIET_STEPS))
        worker = [str(TESTS / "trainer" / "drift" / "drift_worker.py"), folder, *numbers]
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launch, *worker], check=True, env=environment, timeout=WITHIN_S)  # noqa: S603
        found: list[dict[str, Any]] = json.loads(Path(folder, "found.json").read_text())
        return [each | {"load": os.getloadavg()[0]} for each in found]


def report(found: Sequence[dict[str, Any]], *, seeds: Sequence[int], num_cores: int) -> list[str]:
    """Return the result's lines."""
    loads = [each["load"] for each in found]
    waits = [report["wait"] for each in found for report in each["reports"] if report["wait"] is not None]
    head = HEAD.format(
        machine=cpu_model(),
        num_cores=num_cores,
        all_cores=os.cpu_count(),
        rounds=ROUNDS,
        extra=EXTRA_MS,
        loads=f"{min(loads):.1f} to {max(loads):.1f}",
        middle=median(loads),
        waits=f"{min(waits):.0%} to {max(waits):.0%}",
        wait=median(waits),
        starts=len(seeds),
        first=min(seeds),
        last=max(seeds),
        quiet=QUIET_STEPS,
    )
    faults = [each for each in found if each["fault"] not in {NOTHING, QUIET}]
    rows = []
    for fault in sorted({each["fault"] for each in faults}):
        some = [each for each in faults if each["fault"] == fault]
        right = [each for each in some if is_right(each["found"], each["expected"])]
        wrong = Counter(words(each["found"]) for each in some if each not in right)
        cells = [fault, len(some), len(right), sum(len(each["found"]) > 1 for each in right), sum(map(is_early, some))]
        cells += [sum(map(has_flipped, some)), "; ".join(f"{times} x {name}" for name, times in wrong.items())]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    all_right = sum(is_right(each["found"], each["expected"]) for each in faults)
    return [
        *head.split("\n"),
        "",
        "| fault | planted | named rightly | with more causes | within two reports | changed its name | otherwise |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Within two reports: of those whose cause is named at all, the first or the second has the planted one first.",
        "Changed its name: two reports in a row named different first causes of one fault.",
        "",
        f"Of planted faults {all_right} of {len(faults)} named rightly ({all_right / len(faults):.1%}; aim {AIM:.0%}).",
        *input_lines(found),
        *quiet_lines([each for each in found if each["fault"] == QUIET]),
    ]


def input_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the reports that named inputs while they were the same, and nothing while they had changed, as lines."""
    same = [report for each in found if each["fault"] not in {INPUTS, NOTHING} for report in each["reports"]]
    mistaken = sum(any(cause == INPUTS_DRIFTED for cause, _, _ in report["named"]) for report in same)
    changed = [report for each in found if each["fault"] == INPUTS for report in each["reports"] if report["named"]]
    unexplained = sum(any(cause == UNEXPLAINED for cause, _, _ in report["named"]) for report in changed)
    return [
        f"Inputs were named in {mistaken} of {len(same)} reports on the same inputs (aim: none).",
        f"{UNEXPLAINED} was named in {unexplained} of {len(changed)} reports on changed inputs (aim: none).",
    ]


def quiet_lines(quiet: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the causes that were named where nothing was planted, with the waiting for processors."""
    named = [each for each in quiet if any(report["named"] for report in each["reports"])]
    lines = [f"Of {len(quiet)} quiet runs, {len(named)} named a cause (aim: none of 20)."]
    for each in named:
        waits = [report["wait"] for report in each["reports"]]
        causes = " or ".join(sorted({words(report["named"]) for report in each["reports"] if report["named"]}))
        lines.append(f"- {causes}; waiting for processors {waits[0]:.0%}, at most {max(waits):.0%}")
    return lines


def is_right(named: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> bool:
    """Return whether the first cause is the planted one."""
    return bool(named) and list(named[:1]) == list(expected)


def is_early(fault: Mapping[str, Any]) -> bool:
    """Return whether the planted cause is first in one of the first two reports that name any."""
    named = [report["named"] for report in fault["reports"] if report["named"]]
    return any(is_right(each, fault["expected"]) for each in named[:WITHIN_REPORTS])


def has_flipped(fault: Mapping[str, Any]) -> bool:
    """Return whether the first cause changed from a report to the next."""
    firsts = [report["named"][0] for report in fault["reports"] if report["named"]]
    return any(before != after for before, after in pairwise(firsts))


def words(changes: Sequence[Sequence[Any]]) -> str:
    """Return causes with their ranks and tables; of none, that there is none."""
    named = [f"{cause} {[*ranks, *tables] or ''}".rstrip() for cause, ranks, tables in changes]
    return " and ".join(named) or "nothing"


def main() -> None:
    """Plant faults in all starts, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=STARTS, help=f"default: {STARTS}")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="file with a line for each start, to which this call adds its own")
    options = parser.parse_args()
    kept = [] if options.kept is None or not options.kept.exists() else options.kept.read_text().splitlines()
    found: list[dict[str, Any]] = [each for line in kept for each in json.loads(line)]
    seeds = [options.first_seed + index for index in range(len(kept))]
    cores = sorted(os.sched_getaffinity(0))
    free: SimpleQueue[int] = SimpleQueue()
    for core in cores:
        free.put(core)

    def trained_on_a_core(seed: int) -> tuple[int, list[dict[str, Any]]]:
        core = free.get()
        os.sched_setaffinity(0, {core})  # of this thread, and of the processes that it starts
        try:
            return seed, trained(seed)
        finally:
            free.put(core)

    others = range(options.first_seed + len(kept), options.first_seed + len(kept) + options.starts)
    with ThreadPoolExecutor(max_workers=len(cores)) as pool:
        for ended in as_completed([pool.submit(trained_on_a_core, seed) for seed in others]):
            seed, named = ended.result()
            if options.kept is not None:
                with options.kept.open("a") as file:
                    file.write(json.dumps(named) + "\n")
            found += named
            seeds.append(seed)
            lines = report(found, seeds=seeds, num_cores=len(cores))
            print(f"start {len(seeds)}:", *lines[-6:], sep="\n", file=sys.stderr)
            path = write_result("drift-causes", lines, hardware=hardware_slug())
    print(path)


if __name__ == "__main__":
    main()
