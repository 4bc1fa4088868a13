"""TorchRec's ShardingPlanner by NeuroShard's search."""

import hashlib
import inspect
import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist
from neuroshard_api.document import DocumentError, validated
from neuroshard_api.plan import Plan
from neuroshard_api.request import PlanRequest
from neuroshard_api.sharding import ShardingType
from neuroshard_api.tables import Optimizer
from neuroshard_api.topology import Topology
from neuroshard_api.torchrec_plan import ComputeDevice, TorchRecPlan
from neuroshard_api.whole_file import write_whole
from neuroshard_planner import planning
from neuroshard_planner.errors import PlannerError
from neuroshard_trainer.plan_adapter import load_sharding_plan
from torch import nn
from torch.nn.parameter import is_lazy
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan, ShardingPlanner

from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.devices import PlannedDevices, planned_devices
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.limits import translated
from neuroshard_torchrec.model_tables import Limits, ModelTables, SampleBatches, batches_of, model_tables
from neuroshard_torchrec.optimizers import optimizers_of

BATCH_SIZE = 512
"""Samples per device where none are given, as TorchRec's planner has it."""
DENSE_COPIES = 4
"""Weights, gradients, and two moments of the dense part."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class _Question:
    """What is planned: equal digests have equal plans."""

    def __init__(
        self, tables: ModelTables, devices: PlannedDevices, request: PlanRequest, *, column_wise_only: frozenset[str]
    ) -> None:
        self.tables = tables
        self.devices = devices
        self.request = request
        self.column_wise_only = column_wise_only
        content = json.dumps(
            [
                version("neuroshard-operator"),
                request.to_json(),
                devices.bundle.manifest.to_json(),
                sorted(tables.places.items()),
                sorted(column_wise_only),
            ]
        )
        self.digest = hashlib.sha256(content.encode()).hexdigest()


class NeuroShardPlanner(ShardingPlanner):  # type: ignore[misc] # torchrec has no types
    """Plans where a module's tables lie; takes the place of TorchRec's EmbeddingShardingPlanner.

    Args:
        topology: TorchRec's, for its processes and memory, or a NeuroShard topology. None: the process group's.
        batch_size: samples per device. None: 512, TorchRec's default.
        constraints: TorchRec's, by the table's name.
        debug: log the predicted cost of each plan.
        device_type: GPU that the plan is for, of `neuroshard devices`. None: that of the bundle, else this process's.
        bundle: directory of cost models. None: the bundled ones of the device.
        optimizer: of the tables. None: what `apply_optimizer_in_backward` or the sharders' fused_params say.
        sample_batches: global batches from which lookups and reuse are measured.
        dense_memory_bytes: of the dense part. None: weights, gradients and two moments of all other parameters.
        cache_dir: plans of equal models, devices and cost models are read from here and written to it.
        others: further arguments of EmbeddingShardingPlanner; they are named in a warning and have no effect.

    Raises:
        TypeError: an argument is neither this planner's nor TorchRec's.
    """

    def __init__(
        self,
        topology: TorchRecTopology | Topology | None = None,
        batch_size: int | None = None,
        *,
        constraints: Limits | None = None,
        debug: bool = True,
        device_type: str | None = None,
        bundle: Path | str | None = None,
        optimizer: Optimizer | str | None = None,
        sample_batches: SampleBatches = (),
        dense_memory_bytes: int | None = None,
        cache_dir: Path | str | None = None,
        **others: Any,  # noqa: ANN401 - of TorchRec's many types
    ) -> None:
        known = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
        unknown = [name for name in others if name not in known]
        if unknown:
            raise TypeError(f"NeuroShardPlanner() got an unexpected keyword argument {unknown[0]!r}")
        if others:
            logger.warning("this planner has no counterpart of %s; ignored", ", ".join(sorted(others)))
        self._topology = topology
        self._batch_size = BATCH_SIZE if batch_size is None else batch_size
        self._limits = constraints
        self._debug = debug
        self._device_type = device_type
        self._bundle = Path(bundle) if bundle is not None else None
        self._optimizer = optimizer
        self._sample_batches = batches_of(sample_batches)
        self._dense_memory_bytes = dense_memory_bytes
        self._cache_dir = Path(cache_dir) if cache_dir is not None else None
        self._last_plan: Plan | None = None

    @property
    def last_plan(self) -> Plan | None:
        """The plan that was made last, with its costs, memory ledger, bound and baselines, for reports."""
        return self._last_plan

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Return the plan of a module.

        Raises:
            DropInError: the module cannot be planned, or nothing fits.
        """
        question = self._question(module, sharders)
        return self._answer(question, self._planned(question))

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Return the same plan on all ranks of a group; rank 0 searches. To be called by all of them.

        Args:
            module: equal on all ranks.
            sharders: as DistributedModelParallel gets them.
            pg: None: the default group.

        Raises:
            DropInError: on every rank, if the module cannot be planned on any, or ranks have different modules.
        """
        if pg is None:
            if not dist.is_initialized():
                raise DropInError("collective_plan: there is no process group; initialize it, or call plan()")
            pg = cast(dist.ProcessGroup, dist.GroupMember.WORLD)
        question, problem = _attempt(lambda: self._question(module, sharders, processes=pg.size()))
        _require_equal(question, problem, pg)
        assert question is not None
        found: list[Any] = [None, ""]
        if pg.rank() == 0:
            found = list(_attempt(lambda: self._planned(question).to_json()))
        dist.broadcast_object_list(found, group_src=0, group=pg)
        if found[1]:
            raise DropInError(found[1])
        return self._answer(question, Plan.from_json(found[0], where="the plan of rank 0"))

    def _question(self, module: nn.Module, sharders: Sharders | None, processes: int | None = None) -> _Question:
        """Return what is to be planned. Raises DropInError."""
        tables = model_tables(module, sharders=sharders, sample_batches=self._sample_batches, constraints=self._limits)
        devices = planned_devices(self._topology, device_type=self._device_type, bundle=self._bundle)
        if processes not in {None, devices.topology.num_devices}:
            raise DropInError(
                f"topology: has {devices.topology.num_devices} devices, the process group has {processes} processes"
            )
        limits = translated(
            tables, self._limits, max_memory_bytes=devices.max_memory_bytes, compute_device=devices.compute_device
        )
        for warning in limits.warnings:
            logger.warning("%s", warning)
        if len(tables.collections) > 1:
            logger.warning(
                "%d collections are priced as one kernel call and one exchange; each runs its own",
                len(tables.collections),
            )
        raw = {
            "schema_version": PlanRequest.schema_name,
            "tables": tables.table_set.model_dump(mode="json", exclude_none=True),
            "topology": devices.topology.model_dump(mode="json"),
            "batch_size_per_device": self._batch_size,
            "optimizer": self._optimizer or self._declared_optimizer(tables),
            "memory": {"dense_bytes": self._dense_bytes(module, tables)},
            "constraints": limits.constraints.model_dump(mode="json", exclude_none=True),
        }
        try:
            request = validated(PlanRequest, raw, where="request")
        except DocumentError as error:
            raise DropInError(str(error)) from error
        return _Question(tables, devices, request, column_wise_only=limits.column_wise_only)

    def _declared_optimizer(self, tables: ModelTables) -> Optimizer:
        found = optimizers_of(tables.collections)
        if len(found) > 1:
            logger.warning("tables have the optimizers %s; all are priced as %s", ", ".join(found), found[-1])
        return found[-1]

    def _dense_bytes(self, module: nn.Module, tables: ModelTables) -> int:
        if self._dense_memory_bytes is not None:
            return self._dense_memory_bytes
        of_tables = {id(weight) for each in tables.collections for weight in each.weights.values()}
        dense = [weight for weight in module.parameters() if id(weight) not in of_tables]
        lazy = sum(map(is_lazy, dense))
        if lazy:
            logger.warning("%d dense parameters have no shape yet; their memory is not counted", lazy)
        return DENSE_COPIES * sum(weight.numel() * weight.element_size() for weight in dense if not is_lazy(weight))

    def _planned(self, question: _Question) -> Plan:
        """Return the plan, from the cache where it was made before. Raises DropInError."""
        path = None if self._cache_dir is None else self._cache_dir / f"plan-{question.digest[:16]}.json"
        cached = None if path is None else _cached(path, question.request)
        if cached is not None:
            return cached
        try:
            plan = planning.plan(question.request, bundle=question.devices.bundle)
        except PlannerError as error:
            raise DropInError(str(error)) from error
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, plan.to_json())
            except OSError as error:
                logger.warning("the plan is not cached: %s", error)
        return plan

    def _answer(self, question: _Question, plan: Plan) -> ShardingPlan:
        """Return a plan by the paths of the module's collections."""
        self._last_plan = plan
        if self._debug:
            logger.info(
                "%d tables on %d devices: %.3g ms predicted for the embedding part of a step (%s)",
                len(plan.tables),
                plan.request.topology.num_devices,
                plan.predicted.total_ms,
                plan.bundle.source,
            )
        kind: ComputeDevice = "cuda" if question.devices.compute_device == "cuda" else "cpu"
        exported = TorchRecPlan.of(plan, module_path="", compute_device=kind)
        places = question.tables.places
        own = {table.name: table.sharding_type for table in plan.tables}
        cut = {
            places[name][0]
            for name, sharding_type in own.items()
            if sharding_type is ShardingType.COLUMN_WISE or name in question.column_wise_only
        }
        modules: dict[str, dict[str, Any]] = {each.path: {} for each in question.tables.collections}
        for known_as, (path, name) in places.items():
            # of() joins the types of all tables; a collection has kernels of its own, so its own tables decide
            sharding_type = ShardingType.COLUMN_WISE if path in cut else own[known_as]
            parameter = exported.modules[""][known_as]
            modules[path][name] = parameter.model_copy(update={"sharding_type": sharding_type})
        return load_sharding_plan(exported.model_copy(update={"modules": modules}))


def _cached(path: Path, request: PlanRequest) -> Plan | None:
    """Return the plan of a request from its file; None, with a warning, if the file holds none."""
    try:
        if not path.exists():
            return None
        plan = Plan.read(path)
    except (DocumentError, OSError) as error:
        logger.warning("a cached plan is not used: %s", error)
        return None
    if plan.request != request:
        logger.warning("a cached plan is not used: %s: is the plan of another request", path)
        return None
    return plan


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return a result, or the sentence of the error that all ranks are to raise."""
    try:
        return work(), ""
    except DropInError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any
        return None, f"{type(error).__name__}: {error}"


def _require_equal(question: _Question | None, problem: str, pg: dist.ProcessGroup) -> None:
    """Raise the same error on all ranks if any has one, or if their questions differ."""
    votes: list[tuple[str, str, Any]] = [("", "", None)] * pg.size()
    own = (problem, "", None) if question is None else ("", question.digest, _shapes(question))
    dist.all_gather_object(votes, own, group=pg)
    for rank, (error, _, _) in enumerate(votes):
        if error:
            raise DropInError(f"rank {rank}: {error}")
    _, digest, shapes = votes[0]
    for rank, (_, other, theirs) in enumerate(votes):
        if other != digest:
            different = next((name for name in {**shapes, **theirs} if shapes.get(name) != theirs.get(name)), None)
            what = "settings" if different is None else f"table {different!r}"
            raise DropInError(f"rank {rank} and rank 0 differ in {what}; make the same module and planner on all ranks")


def _shapes(question: _Question) -> dict[str, str]:
    return {table.name: repr(table) for table in question.request.tables.tables}
