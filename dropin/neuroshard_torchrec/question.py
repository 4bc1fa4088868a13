"""What a planner is asked: tables, devices, and settings as one request. Plans nothing."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, TableSet
from neuroshard_api.documents.topology import Topology
from neuroshard_api.process.allocator import has_expandable_segments
from neuroshard_costs.own_costs import OwnCosts
from torch import nn
from torchrec.distributed.planner.types import Enumerator, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard_torchrec.asked import Limits, asked_of
from neuroshard_torchrec.codecs import wire_of
from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.dense_part import dense_bytes, dense_matrices
from neuroshard_torchrec.devices import Caps, PlannedDevices, planned_devices, require_devices_of
from neuroshard_torchrec.errors import DropInError, in_words_of_script
from neuroshard_torchrec.first_rank import logger_of
from neuroshard_torchrec.limits import translated
from neuroshard_torchrec.managed_collision import managed_collision_bytes
from neuroshard_torchrec.model_tables import ModelTables, model_tables
from neuroshard_torchrec.optimizers import optimizers_of, with_optimizers
from neuroshard_torchrec.reservation import Reserved, reserved
from neuroshard_torchrec.sample_batches import Batches

logger = logger_of(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerSettings:
    """What a planner was made with; NeuroShardPlanner describes the fields."""

    topology: TorchRecTopology | Topology | None
    batch_size: int
    constraints: Limits | None
    device_type: str | None
    bundle: Path | OwnCosts | None
    optimizer: Optimizer | str | None
    sample_batches: Batches
    problem: DropInError | None
    """Why an argument cannot be read; the ranks vote on it before one raises. None: all can."""
    dense_memory_bytes: int | None
    storage_reservation: StorageReservation | None
    enumerator: Enumerator | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TableShape:
    """A table in words, for telling questions apart."""

    declared: str
    """What the module says of it."""
    measured: str
    """What sample batches, or constraints, say of its lookups."""


Shapes = Mapping[str, TableShape]
"""By the table's name."""
_MEASURED = {"pooling_factor", "reuse_histogram", "duplication_factor"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is planned: equal digests have equal plans."""

    tables: ModelTables
    devices: PlannedDevices
    request: PlanRequest
    carried: Mapping[str, Mapping[str, Any]]
    """Fields of TorchRec's ParameterSharding that constraints name, by the table's name."""
    release: str | None
    """Of this package. None: it is not installed, as in a source tree on the path."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps(
            [
                self.release,
                self.request.to_json(),
                self.devices.bundle.manifest.to_json(),
                self.devices.compute_device,
                sorted(self.tables.places.items()),
                repr(sorted(self.carried.items())),
            ]
        )
        object.__setattr__(self, "digest", hashlib.sha256(content.encode()).hexdigest())

    @property
    def settings(self) -> Mapping[str, str]:
        """All that is not a table, in the words of the planner's arguments, for telling questions apart."""
        request = self.request
        return {
            "the release of neuroshard-operator": str(self.release),
            "bundle": self.devices.bundle.manifest.name,
            "the topology's compute_device": self.devices.compute_device,
            "topology": f"{request.topology.num_nodes} x {request.topology.devices_per_node}",
            "topology's nodes of a domain (pod_size)": str(request.topology.nodes_per_domain),
            "device_type": request.topology.device.name,
            "batch_size": str(request.batch_size_per_device),
            "optimizer": request.optimizer.value,
            **{_MEMORY_WORDS.get(name, f"memory ({name})"): _plain(value) for name, value in request.memory},
            **{f"constraints ({name})": _plain(value) for name, value in request.constraints if name != "tables"},
            **{
                f"{field} of table {table!r}": _plain(value)
                for table, limits in sorted((request.constraints.tables or {}).items())
                for field, value in limits
                if value is not None
            },
            **{f"constraints of table {name!r}": str(each) for name, each in sorted(self.carried.items())},
        }

    @property
    def shapes(self) -> Shapes:
        """Each table in words."""
        return {
            table.name: TableShape(
                declared=table.model_dump_json(exclude=_MEASURED), measured=table.model_dump_json(include=_MEASURED)
            )
            for table in self.request.tables.tables
        }


_MEMORY_WORDS = {
    "reserve_bytes": "the bytes that storage_reservation keeps free",
    "dense_bytes": "the bytes of the dense part (dense_memory_bytes)",
    "output_data_type": "output_dtype",
}
"""Fields of a request's memory, and what a script has in their place."""


def _plain(value: object) -> str:
    """Return a value in words, without the names of our classes."""
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def question_of(
    module: nn.Module,
    sharders: Sharders | None,
    settings: PlannerSettings,
    *,
    ranks: Sequence[int] | None = None,
    caps: Caps | None = None,
) -> Question:
    """Return the question to plan.

    Args:
        module: on any device, meta included.
        sharders: as DistributedModelParallel gets them. None: TorchRec's default ones.
        settings: of the planner.
        ranks: of the process group that shards the module, in the world. None: not known.
        caps: on memory, that the ranks agreed on. None: those of the topology.

    Raises:
        DropInError: the module, the devices, or the constraints cannot be planned.
    """
    if settings.problem is not None:
        raise settings.problem
    devices = planned_devices(
        settings.topology, device_type=settings.device_type, bundle=settings.bundle, ranks=ranks, caps=caps
    )
    asked = asked_of(settings.constraints, settings.enumerator, module, sharders)
    tables = model_tables(
        module,
        sharders=sharders,
        sample_batches=settings.sample_batches,
        asked=asked,
        batch_size=settings.batch_size,
        compute_device=devices.compute_device,
    )
    if ranks is not None:
        require_devices_of(devices.topology, ranks)
    _require_even_buckets(tables, devices.topology.num_devices)
    in_host_memory = devices.with_host_memory()
    limits = translated(
        tables,
        asked,
        topology=devices.topology,
        max_memory_bytes=devices.max_memory_bytes,
        compute_device=devices.compute_device,
        has_host_memory=in_host_memory.host_memory is not None and not in_host_memory.device.is_cpu,
        families=devices.bundle.manifest.families,
    )
    for warning in (*devices.warnings, *limits.warnings):
        logger.warning("%s", warning)
    if len(tables.collections) > 1:
        logger.warning(
            "%d collections are priced as one kernel call and one exchange; each runs its own",
            len(tables.collections),
        )
    wire, unpriced = wire_of(tables.collections) if limits.output_type is None else (None, "")
    if unpriced:
        logger.warning("%s", unpriced)
    table_set = _with_trained_optimizers(tables, settings)
    kept_free = _reserved(settings, devices, module, sharders, asked.by_name)
    dense = _first(settings.dense_memory_bytes, kept_free.dense_bytes if kept_free else None)
    dense = dense_bytes(module, tables) if dense is None else dense
    matrices = dense_matrices(module, tables)
    raw = {
        "schema_version": PlanRequest.schema_name,
        "tables": table_set.model_dump(mode="json", exclude_none=True),
        "topology": (in_host_memory if limits.asks_for_host_memory else devices.topology).model_dump(mode="json"),
        "batch_size_per_device": settings.batch_size,
        "optimizer": settings.optimizer or table_set.optimizer,
        "memory": {
            "dense_bytes": dense,
            **({"reserve_fraction": 0.0, "reserve_bytes": kept_free.beside(dense)} if kept_free else {}),
            **({"output_data_type": limits.output_type} if limits.output_type else {}),
            "managed_collision_bytes": managed_collision_bytes(
                tables, num_devices=devices.topology.num_devices, batch_size=settings.batch_size
            ),
            "expandable_segments": bool(has_expandable_segments(os.environ)),
        },
        **({"dense_matrices": matrices.model_dump(mode="json")} if matrices else {}),
        **({"wire": wire} if wire else {}),
        "constraints": limits.constraints.model_dump(mode="json", exclude_none=True),
    }
    try:
        request = validated(PlanRequest, raw, where="request")
    except DocumentError as error:
        raise DropInError(in_words_of_script(str(error), compute_device=devices.compute_device)) from error
    return Question(
        tables=tables,
        devices=devices,
        request=request,
        carried=limits.carried,
        release=_release(),
    )


def _first(*values: int | None) -> int | None:
    return next((each for each in values if each is not None), None)


def _reserved(
    settings: PlannerSettings,
    devices: PlannedDevices,
    module: nn.Module,
    sharders: Sharders | None,
    constraints: Limits,
) -> Reserved | None:
    """Return the memory that the script's reservation keeps free. None: it gave none. Raises DropInError."""
    if settings.storage_reservation is None:
        return None
    topology = TorchRecTopology(
        world_size=devices.topology.num_devices,
        local_world_size=devices.topology.devices_per_node,
        compute_device="cuda",  # of memory that is reserved on a device, whatever the ranks compute on
        hbm_cap=devices.max_memory_bytes or devices.topology.device.memory_bytes,
    )
    return reserved(
        settings.storage_reservation,
        topology,
        module,
        sharders,
        batch_size=settings.batch_size,
        constraints=dict(constraints),
    )


def _require_even_buckets(tables: ModelTables, num_devices: int) -> None:
    """Do nothing if managed collision deals rows out evenly, as TorchRec's planner asks too. Raises DropInError."""
    for collection in tables.collections:
        for name, module in collection.id_maps.items():
            count = module.buckets()
            if count % num_devices:
                raise DropInError(
                    f"table {name!r} has {count} buckets of managed collision on {num_devices} devices, which TorchRec "
                    f"cannot deal out evenly; hint: make its module with `buckets` a multiple of {num_devices}"
                )


def _with_trained_optimizers(tables: ModelTables, settings: PlannerSettings) -> TableSet:
    """Return the tables with their optimizers, which the settings may replace by one. Raises DropInError."""
    if settings.optimizer is not None:
        return with_optimizers(tables.table_set, {})
    by_place = optimizers_of(tables.collections)
    found = with_optimizers(tables.table_set, {name: by_place[place] for name, place in tables.places.items()})
    different = sorted(set(by_place.values()))
    if len(different) > 1:
        logger.warning(
            "tables have the optimizers %s, each with separate kernel calls; calls after the first are not priced",
            ", ".join(different),
        )
    return found


def _release() -> str | None:
    try:
        return version("neuroshard-operator")
    except PackageNotFoundError:
        return None
