"""Time to find the layouts of dense parts whose units are all different.

No unit repeats, and no two have the same size, so no two have the same transients: the most work that the frontier has.
Parameters, activations, and floating-point operations are drawn with the seed below. Devices are simulated H100, 8 in a
node; units may be shared by the node, and on two nodes by all devices too. Units of three operators have 8 times the
parameters, so that 55 of 100 may also be split: their gathers take more than 2 % of a device. The time is processor
time, from a profile to all candidates, one after the other on one core: median, fastest, and slowest of the
repetitions.
"""

import argparse
import random
from statistics import median
from time import process_time

from neuroshard_api.documents.dense_layout import DenseChoices, DenseGroup
from neuroshard_api.documents.dense_profile import DenseOperator, DenseProfile, DenseUnit
from neuroshard_api.documents.presets import preset
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_dense.layouts import Layouts
from neuroshard_dense.options import UnitOptions

from benchmarks.results_file import write_result

DEVICE = "h100-80gb"
SEED = 11
REPETITIONS = 3
AIM_SECONDS = 0.5
CASES = ((20, 1, 1), (50, 1, 1), (100, 1, 1), (100, 2, 1), (50, 1, 3), (100, 1, 3))
"""Number of units, of nodes, and of operators in a unit."""
LARGER = 8
"""Times the parameters, of units with operators: 55 of 100 are then large enough to be split."""
MIB = 2**20


def main() -> None:
    """Time every case and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    note = parser.parse_args().note
    rows = [_row(*case) for case in CASES]
    lines = [
        "# Time to find the layouts of a dense part",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        f"Seed {SEED}, {REPETITIONS} repetitions. The aim is {AIM_SECONDS} s for 100 units. {note}".strip(),
        "",
        "| units | nodes | operators | median s | fastest s | slowest s | candidates | smallest GiB | step ms |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    print(write_result("dense-search-time", lines))


def different_units(num_units: int, *, times: int = 1) -> DenseProfile:
    """Return a dense part of layers of ``times`` 1 to 64 million parameters, which keep 16 MiB to 1 GiB each."""
    rng = random.Random(SEED)  # noqa: S311 - draws test data
    units = []
    for index in range(num_units):
        num_parameters = times * rng.randint(10**6, 64 * 10**6)
        activation = rng.randint(16 * MIB, 1024 * MIB)
        flops = 2 * num_parameters * 8192
        units.append(
            DenseUnit(
                module=f"over_arch.{index}",
                num_parameters=num_parameters,
                forward_flops=flops,
                backward_flops=2 * flops,
                activation_bytes=activation,
                input_bytes=activation // 8,
                output_bytes=activation // 8,
                transient_bytes=activation // 8,
            )
        )
    weights = 4 * sum(unit.num_parameters for unit in units)
    passes = sum(unit.activation_bytes for unit in units)
    return DenseProfile(
        batch_size_per_device=8192,
        features_sha256="0" * 64,
        optimizer="Adam",
        torch_version="2.14.1",
        input_bytes=0,
        weights_bytes=weights,
        gradient_bytes=weights,
        optimizer_state_bytes=2 * weights,
        working_bytes=passes,
        passes_working_bytes=passes,
        optimizer_working_bytes=0,
        units=tuple(units),
    )


def _with_operators(unit: DenseUnit, count: int) -> DenseUnit:
    """Return a unit whose parameters and work are in equal operators, each with the unit's memory."""
    operator = DenseOperator(
        module="0",
        num_parameters=unit.num_parameters // count,
        largest_tensor_parameters=unit.num_parameters // count,
        forward_flops=unit.forward_flops // count,
        backward_flops=unit.backward_flops // count,
        forward_bytes=unit.activation_bytes,
        backward_bytes=unit.activation_bytes + unit.output_bytes,
        transient_bytes=unit.transient_bytes,
        left_bytes=unit.activation_bytes + unit.output_bytes,
    )
    operators = tuple(operator.model_copy(update={"module": str(index)}) for index in range(count))
    return unit.model_copy(update={"operators": operators})


def _row(num_units: int, num_nodes: int, num_operators: int) -> str:
    has_operators = num_operators > 1
    profile, costs = different_units(num_units, times=LARGER if has_operators else 1), bundled_bundle(DEVICE)
    if has_operators:
        units = tuple(_with_operators(unit, num_operators) for unit in profile.units)
        profile = profile.model_copy(update={"units": units})
    topology = preset(DEVICE).topology(num_nodes=num_nodes, devices_per_node=8)
    groups = (DenseGroup.NODE, DenseGroup.WORLD)[:num_nodes]
    seconds = []
    for _ in range(REPETITIONS):
        start = process_time()
        options = UnitOptions(profile, topology, costs=costs, choices=DenseChoices(), groups=groups)
        layouts = Layouts(profile, options)
        seconds.append(process_time() - start)
    smallest, fastest = layouts.candidates[0], layouts.candidates[-1]
    return (
        f"| {num_units} | {num_nodes} | {num_operators} | "
        f"{median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} | "
        f"{len(layouts.candidates)} | {smallest.memory.total_bytes / 2**30:.2f} | {fastest.ms:.3f} |"
    )


if __name__ == "__main__":
    main()
