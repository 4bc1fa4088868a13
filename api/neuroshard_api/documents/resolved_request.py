"""The request that a plan's shards answer: what was asked for, with what was chosen written into it.

A request may permit several forms of a plan, and a plan keeps it as it was asked. What was chosen is in parts of the
plan: types of tables and on the wire, groups whose repeats are left out, groups of devices, types of gradients, and the
layout of the dense part. Costs, memory, and trainers need both as one request, in which nothing is left to choose.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.documents.communication import CommunicationPlan
from neuroshard_api.documents.dense_layout import DenseLayout
from neuroshard_api.documents.gradient_exchange import GradientDecision, GradientType
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.documents.served_request import without_tables
from neuroshard_api.documents.stored_types import StoredTypes, with_types
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import Replication

IN_GROUPS = tuple(kind for kind in ShardingType if kind is not ShardingType.DATA_PARALLEL)
"""Types of tables in groups: gradients of data_parallel tables are added up over all devices."""


def resolved_request(
    asked: PlanRequest,
    *,
    repeats: Sequence[str],
    grouped: Sequence[str],
    communication: CommunicationPlan | None,
    stored_types: StoredTypes | None,
    gradients: GradientDecision | None,
    dense: DenseLayout | None,
    replication: Replication | None,
    served: Sequence[str] = (),
) -> PlanRequest:
    """Return a request with what a plan of it chose; where the plan lacks a part, as the request itself says.

    Args:
        asked: what was planned.
        repeats: groups whose repeats are left out. A request only permits them.
        grouped: those of them in the grouped form.
        communication: types on the wire.
        stored_types: of the tables.
        gradients: of the dense part.
        dense: its layout.
        replication: groups of devices, which fill their nodes.
        served: tables on embedding servers, which are not of the devices' request.
    """
    changes: dict[str, Any] = {
        "deduplicate": tuple(repeats) or None,
        "grouped": tuple(grouped) or None,
        "communication": None,
        "gradient_choices": None,
        "replication": None,
    }
    if communication is not None:
        changes["wire"] = None if communication.chosen.is_exact else communication.chosen
    if gradients is not None and asked.gradient_choices is not None:
        kind = gradients.chosen
        changes["gradients"] = None if kind is GradientType.FP32 else asked.gradient_choices.exchange(kind)
    if stored_types is not None and stored_types.tables:
        changes["tables"] = with_types(asked.tables, {each.name: each.chosen for each in stored_types.tables})
    if dense is not None:
        changes["dense_memory"] = dense.memory
    changed = {field: value for field, value in changes.items() if getattr(asked, field) != value}
    found = asked.model_copy(update=changed) if changed else asked
    if served:
        found = without_tables(found, served)
    elif found.servers is not None:  # it permits servers, and the plan has none
        found = found.model_copy(update={"servers": None})
    if replication is None:
        return found
    return request_of_group(found, replication.of(asked.topology).group)


def request_of_group(request: PlanRequest, group: Topology) -> PlanRequest:
    """Return the request of one group of devices: its devices, and types of tables that stay within it."""
    constraints = request.constraints
    limited: Mapping[str, Any]
    if constraints.sharding_types is None:
        excluded = dict.fromkeys((*(constraints.excluded_sharding_types or ()), ShardingType.DATA_PARALLEL))
        limited = {"excluded_sharding_types": tuple(excluded)}
    else:
        # No table takes the types of all tables where groups have none of these: its own come first.
        kept = tuple(kind for kind in constraints.sharding_types if kind in IN_GROUPS)
        limited = {"sharding_types": kept or constraints.sharding_types}
    tables = {name: _in_group(own) for name, own in constraints.tables.items()}
    return request.model_copy(
        update={"topology": group, "constraints": constraints.model_copy(update={**limited, "tables": tables})}
    )


def _in_group(own: TableConstraints) -> TableConstraints:
    types = own.sharding_types
    kept = None if types is None else tuple(kind for kind in types if kind in IN_GROUPS)
    return own.model_copy(update={"sharding_types": kept})
