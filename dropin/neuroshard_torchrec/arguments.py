"""What becomes of arguments of TorchRec's planner and Topology, and of fields of its ParameterConstraints.

What a script asks for is kept, refused by name, or counted in the prices alone. Only what tunes TorchRec's search, or
rates the devices for it, is ignored, and named in a warning. The guide's tables are made from these.
"""

import inspect
import operator
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

from torchrec.distributed.planner.types import BasicCommsBandwidths, Enumerator, ParameterConstraints, Topology
from torchrec.distributed.types import ParameterSharding

from neuroshard_torchrec.errors import DropInError


class Treatment(StrEnum):
    """What becomes of what a script asks for."""

    KEPT = "kept"
    PRICED = "priced"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Covered:
    """One argument or field."""

    treatment: Treatment
    how: str


ARGUMENTS: Mapping[str, Covered] = {
    "topology": Covered(Treatment.KEPT, "argument by argument, below"),
    "batch_size": Covered(Treatment.KEPT, "samples per device"),
    "enumerator": Covered(
        Treatment.KEPT,
        "its constraints, and its batch size where the planner has none; one of a class of your own is asked for the "
        "types and kernels of each table, and leaves out those for which it has none; estimators of your own have no "
        "effect, as `performance_model`",
    ),
    "storage_reservation": Covered(
        Treatment.KEPT,
        "the memory that it reserves is kept free; what it counts as dense replaces our count, and where it counts "
        "none the dense part is in it",
    ),
    "proposer": Covered(Treatment.IGNORED, "tunes TorchRec's search"),
    "partitioner": Covered(Treatment.IGNORED, "tunes TorchRec's search"),
    "performance_model": Covered(Treatment.IGNORED, "rates TorchRec's proposals; `bundle` takes a cost model of yours"),
    "stats": Covered(Treatment.IGNORED, "`planner.last_plan` has the costs and the memory for `neuroshard report`"),
    "constraints": Covered(Treatment.KEPT, "field by field, below"),
    "debug": Covered(Treatment.KEPT, "logs the predicted cost"),
    "callbacks": Covered(
        Treatment.REFUSED, "they change TorchRec's sharding options: change the plan, or constrain it"
    ),
    "timeout_seconds": Covered(
        Treatment.REFUSED, "the search ends by its count of evaluations, which is the same on every machine"
    ),
    "plan_loader": Covered(
        Treatment.KEPT, "TorchRec's planner checks and returns the stored plan; without one, a plan is searched"
    ),
}
"""By name, in TorchRec's order."""

_OF_DEVICE_TYPE = "links and speed are those of the device type; a warning names what is not TorchRec's default"

TOPOLOGY_ARGUMENTS: Mapping[str, Covered] = {
    "world_size": Covered(Treatment.KEPT, "devices"),
    "compute_device": Covered(Treatment.KEPT, "`cuda` or `cpu`; others are refused"),
    "hbm_cap": Covered(Treatment.KEPT, "the memory of a device, at most what the device type has"),
    "ddr_cap": Covered(Treatment.KEPT, "the host's memory for a device, where `compute_kernels` permit it"),
    "ssd_cap": Covered(Treatment.IGNORED, "no table is on an SSD: its kernel, `key_value`, is refused"),
    "local_world_size": Covered(Treatment.KEPT, "devices on a node"),
    "pod_size": Covered(Treatment.KEPT, "nodes of an NVLink domain"),
    "hbm_mem_bw": Covered(Treatment.IGNORED, _OF_DEVICE_TYPE),
    "ddr_mem_bw": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "ssd_mem_bw": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "hbm_to_ddr_mem_bw": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "intra_host_bw": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "inter_host_bw": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "bwd_compute_multiplier": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "custom_topology_data": Covered(Treatment.KEPT, "the least memory of any device; a warning has least and most"),
    "weighted_feature_bwd_compute_multiplier": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "uneven_sharding_perf_multiplier": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "generalized_comms_bandwidths": Covered(Treatment.IGNORED, "as `hbm_mem_bw`"),
    "created_by_factory": Covered(Treatment.IGNORED, "who made it"),
}
"""Arguments of Topology, by name, in TorchRec's order."""

FIELDS: Mapping[str, Covered] = {
    "sharding_types": Covered(Treatment.KEPT, "also where few devices make a type trivial: `row_wise` on one device"),
    "compute_kernels": Covered(
        Treatment.KEPT, "`fused`, `fused_uvm`, `fused_uvm_caching`, `dense` of copies; the sharder's own as well"
    ),
    "min_partition": Covered(Treatment.KEPT, "raised to the next width that divides the table and is a multiple of 4"),
    "pooling_factors": Covered(Treatment.PRICED, "lookups"),
    "num_poolings": Covered(Treatment.PRICED, "lookups"),
    "batch_sizes": Covered(Treatment.PRICED, "lookups"),
    "is_weighted": Covered(Treatment.PRICED, "weights that travel with the ids"),
    "cache_params": Covered(Treatment.KEPT, "a `load_factor` is planned with, in time and memory"),
    "enforce_hbm": Covered(Treatment.KEPT, "not priced"),
    "stochastic_rounding": Covered(Treatment.KEPT, "not priced"),
    "bounds_check_mode": Covered(Treatment.KEPT, "not priced"),
    "feature_names": Covered(Treatment.IGNORED, "the module's count"),
    "output_dtype": Covered(Treatment.KEPT, "priced where it is the same of all tables"),
    "device_group": Covered(
        Treatment.KEPT, "a table of another device than the topology's is left out, as in TorchRec"
    ),
    "key_value_params": Covered(Treatment.KEPT, "not priced"),
    "use_virtual_table": Covered(Treatment.REFUSED, "virtual tables are not planned: use TorchRec's planner"),
}
"""Of ParameterConstraints, by name."""

COPIED = tuple(
    sorted({each.name for each in fields(ParameterConstraints)} & {e.name for e in fields(ParameterSharding)})
)
"""Fields that a plan of TorchRec has too, those of later releases included: they reach FBGEMM as they are."""


def own_arguments(given: object, kind: type) -> dict[str, Any]:
    """Return the arguments of TorchRec's object that are not their defaults, as far as it keeps them, with these.

    Args:
        given: the object.
        kind: the class whose arguments count.
    """
    return {
        name: parameter.default
        for name, parameter in inspect.signature(kind.__init__).parameters.items()  # type: ignore[misc]
        if parameter.default is not parameter.empty
        and getattr(given, name, getattr(given, f"_{name}", parameter.default)) != parameter.default
    }


def ignored_of(topology: Topology) -> list[str]:
    """Return the arguments of a topology that rate its links and devices, and are not TorchRec's defaults."""
    told_elsewhere = {"ssd_cap", "pod_size", "created_by_factory"}
    own = {*own_arguments(topology, Topology)} - {"generalized_comms_bandwidths"}
    if type(topology.comms_bandwidths) is not BasicCommsBandwidths:
        own.add("generalized_comms_bandwidths")
    kept = {name for name, covered in TOPOLOGY_ARGUMENTS.items() if covered.treatment is not Treatment.IGNORED}
    return [name for name in inspect.signature(Topology.__init__).parameters if name in own - told_elsewhere - kept]


def own_estimators(enumerator: Enumerator | None) -> list[str]:
    """Return the classes of an enumerator's estimators that estimate otherwise than those of TorchRec's enumerator."""
    return [
        type(each).__name__
        for each in getattr(enumerator, "_estimators", ())
        if not type(each).__module__.startswith("torchrec.")
        or any(default is not None for default in own_arguments(each, type(each)).values())
    ]


def require_covered(given: Mapping[str, Any]) -> None:
    """Do nothing if arguments that state a requirement are kept. Raises DropInError, which names one that is not."""
    for name, value in given.items():
        covered = ARGUMENTS.get(name)
        if value is None or value == [] or (covered is not None and covered.treatment is not Treatment.REFUSED):
            continue
        why = "this planner does not know it" if covered is None else covered.how
        raise DropInError(f"{name}: is not kept: {why}; hint: leave it out, or plan with TorchRec's planner")


def whole_number(given: object, *, where: str, hint: str) -> int:
    """Return a number of at least 1, of Python's or NumPy's types. Raises DropInError."""
    try:
        found = int(given) if isinstance(given, float) and given.is_integer() else operator.index(given)  # type: ignore[arg-type] # what is none is refused
    except TypeError:
        found = 0
    if found < 1 or isinstance(given, bool):
        raise DropInError(f"{where}: must be a whole number of at least 1 (found {given!r}); hint: give {hint}")
    return found


def require_known_fields(constraints: Mapping[str, ParameterConstraints]) -> None:
    """Do nothing if constraints ask for nothing that would be lost. Raises DropInError, which names the field."""
    for table, limit in constraints.items():
        for name in _asked(limit):
            covered = FIELDS.get(name)
            if name in COPIED or (covered is not None and covered.treatment is not Treatment.REFUSED):
                continue
            why = (
                f"a field of {type(limit).__name__} that this planner does not know" if covered is None else covered.how
            )
            raise DropInError(
                f"constraints[{table!r}].{name}: is not kept: {why}; hint: leave it out, or plan the module with "
                "TorchRec's planner"
            )


def _asked(limit: ParameterConstraints) -> Iterable[str]:
    """Yield the fields that differ from their defaults, attributes that a subclass adds included."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in fields(limit)
    }
    for name, value in vars(limit).items():
        if name not in defaults or value != defaults[name]:
            yield name


def guide_table(covered: Mapping[str, Covered], what: str) -> str:
    """Return a table of the guide."""
    rows = [f"| {what} | | |", "|---|---|---|"]
    rows += [f"| `{name}` | {each.treatment} | {each.how} |" for name, each in covered.items()]
    return "\n".join(rows)
