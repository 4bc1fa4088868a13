"""What it costs to permit further forms of a plan, and whether choices that are made once find plans as good.

    OMP_NUM_THREADS=1 python -m benchmarks.permitted_forms [--tasks 20] [--before OTHER.json] [--rows ROWS.json]

Each task is planned with nothing permitted, with one to three forms, and with all of them. ``--rows`` writes the costs,
searches, and seconds; ``--before`` takes such a file of another release, whose plans are compared. Costs and searches
do not depend on the load of the machine, and seconds are the processor's.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, TableSet
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import weights_bytes
from neuroshard_planner import pipeline, planning

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, draw_pool, sampled_tables

FIRST_SEED = 9_400_000
DEVICES_PER_NODE = 8
FORMS = ("types", "wire", "groups", "repeats")
COMBINATIONS = (("types",), ("wire",), ("groups",), ("repeats",), ("types", "wire"), ("wire", "groups"), FORMS[:3])
TIGHT = 1.25
"""Memory of a device over its share of the weights, in a third of the tasks."""
DEARER = 0.001


def tight(tables: TableSet, num_devices: int, *, room: float) -> Constraints:
    """Return the limit on devices that have room for this many times their share of the weights, and 6 GiB."""
    share = sum(map(weights_bytes, tables.tables)) / num_devices
    return Constraints(max_memory_bytes_per_device=int(room * share) + 6 * 2**30)


def task(index: int) -> PlanRequest:
    """Return a task with nothing permitted; half of its tables repeat lists."""
    generator = np.random.default_rng(FIRST_SEED + index)
    tables = sampled_tables(draw_pool(), int(generator.integers(8, 61)), generator, name=f"task {index}")
    factor = float(generator.choice([1.0, 2.0, 6.0]))
    grouped = tuple(
        table.model_copy(update={"duplication_group": "user", "duplication_factor": factor}) if position % 2 else table
        for position, table in enumerate(tables.tables)
    )
    num_nodes = int(generator.choice([1, 2, 4]))
    constraints = Constraints()
    if index % 3 == 0:
        constraints = tight(tables, num_nodes * DEVICES_PER_NODE, room=TIGHT)
    return PlanRequest(
        tables=tables.model_copy(update={"tables": grouped, "session_run": 8}),
        topology=preset(DEVICE_TYPE).topology(num_nodes=num_nodes, devices_per_node=DEVICES_PER_NODE),
        batch_size_per_device=int(generator.choice([1024, 4096, 8192])),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=constraints,
    )


def permitting(request: PlanRequest, forms: tuple[str, ...]) -> PlanRequest:
    """Return the task with these forms permitted."""
    types = Constraints(
        data_types=(DataType.FP32, DataType.FP16),
        max_memory_bytes_per_device=request.constraints.max_memory_bytes_per_device,
    )
    updates: Mapping[str, Mapping[str, Any]] = {
        "types": {"constraints": types},
        "wire": {"communication": CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,))},
        "groups": {"replication": ReplicationChoices()},
        "repeats": {"deduplicate": ("user",)},
    }
    return request.model_copy(update={field: value for form in forms for field, value in updates[form].items()})


def measured(asked: PlanRequest) -> dict[str, Any]:
    """Plan a request; return cost, searches, and processor seconds."""
    searches = 0
    search = planning.searched

    def counted(*arguments: Any, **options: Any) -> Plan:  # noqa: ANN401 - passes on what it is given
        nonlocal searches
        searches += 1
        return search(*arguments, **options)

    planning.searched = counted
    began = time.process_time()
    try:
        found = pipeline.plan(asked, bundle=bundled_bundle(DEVICE_TYPE))
    except ValueError as error:
        return {"problem": str(error)}
    finally:
        planning.searched = search
    seconds = time.process_time() - began
    return {"ms": found.predicted.total_ms, "searches": searches, "seconds": round(seconds, 3)}


def rows(num_tasks: int) -> dict[str, dict[str, Any]]:
    """Return the results by task and forms."""
    found = {}
    for index in range(num_tasks):
        plain = task(index)
        for forms in ((), COMBINATIONS[index % len(COMBINATIONS)], FORMS):
            found[f"{index} {'+'.join(forms) or 'nothing'}"] = measured(permitting(plain, forms))
            sys.stderr.write(f"{index} {forms}\n")
    return found


def report(found: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    """Return the result's lines."""
    planned = {key: row for key, row in found.items() if "ms" in row}
    of = {key: planned.get(f"{key.split()[0]} nothing") for key in planned}
    every = [(row, of[key]) for key, row in planned.items() if key.endswith("+".join(FORMS))]
    ratios = [row["seconds"] / plain["seconds"] for row, plain in every if plain is not None]
    counts = [row["searches"] for row, _ in every]
    lines = [
        "# Planning with further forms permitted",
        "",
        f"{len({key.split()[0] for key in found})} tasks of 8 to 60 tables on 8, 16, and 32 devices (simulated H100),",
        f"memory tight in a third; {len(found) - len(planned)} of {len(found)} requests have no plan that fits.",
        "",
        "| with all forms permitted | median | most |",
        "|---|---|---|",
        f"| searches | {median(counts):g} | {max(counts)} |",
        f"| processor time over the plain search's | {median(ratios):.2f} | {max(ratios):.2f} |",
    ]
    if before is not None:
        both = [(row["ms"], before[key]["ms"]) for key, row in planned.items() if "ms" in before.get(key, {})]
        shares = sorted(now / then - 1 for now, then in both)
        ratio = sum(row["seconds"] for row in planned.values()) / sum(
            before[key]["seconds"] for key in planned if "seconds" in before.get(key, {})
        )
        dearer, cheaper = (sum(sign * each > DEARER for each in shares) for sign in (1, -1))
        lines += [
            "",
            f"Next to the earlier planner, on {len(both)} requests:",
            "",
            f"- {dearer} plans are more than 0.1 % dearer, the worst by {100 * shares[-1]:.2f} %;",
            f"- {cheaper} plans are more than 0.1 % cheaper, the best by {-100 * shares[0]:.2f} %;",
            f"- processor time of all is {100 * ratio:.0f} % of what it was.",
        ]
    return lines


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    found = rows(options.tasks)
    if options.rows is not None:
        options.rows.write_text(json.dumps(found, indent=1), encoding="utf-8")
    before = None if options.before is None else json.loads(options.before.read_text(encoding="utf-8"))
    lines = report(found, before)
    sys.stdout.write("\n".join(lines) + "\n")
    write_result("permitted-forms", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
