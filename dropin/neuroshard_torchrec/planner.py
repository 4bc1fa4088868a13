"""TorchRec's ShardingPlanner by NeuroShard's search."""

import inspect
import logging
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Topology
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.process.errors import InputError
from neuroshard_planner import pipeline
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.own_costs import OwnCosts
from neuroshard_trainer.sharding.live_sharding import Collections, prove_sharding
from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan
from torch import nn
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan, ShardingPlanner

from neuroshard_torchrec.agreement import agreed_question, attempt, from_rank_0, together
from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.estimators import NeuroShardEstimator
from neuroshard_torchrec.model_tables import Limits
from neuroshard_torchrec.plan_cache import PlanCache
from neuroshard_torchrec.question import PlannerSettings, Question, question_of
from neuroshard_torchrec.sample_batches import SampleBatches, batches_of

BATCH_SIZE = 512
"""Samples per device where none are given, as TorchRec's planner has it."""

logger = logging.getLogger(__name__)


class NeuroShardPlanner(ShardingPlanner):  # type: ignore[misc] # torchrec has no types
    """Plans where a module's tables lie; takes the place of TorchRec's EmbeddingShardingPlanner.

    Args:
        topology: TorchRec's, for its processes and memory, or a NeuroShard topology. None: the process group's.
        batch_size: samples per device. None: 512, TorchRec's default.
        constraints: TorchRec's, by the table's name.
        debug: log the predicted cost of each plan.
        device_type: GPU that the plan is for, of `neuroshard devices`. None: that of the bundle, else this process's.
        bundle: directory of cost models, or a cost model of the user's own. None: the bundled ones of the device.
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
        bundle: Path | str | OwnCosts | None = None,
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
        batches, problem = attempt(lambda: batches_of(sample_batches))
        self._settings = PlannerSettings(
            topology=topology,
            batch_size=BATCH_SIZE if batch_size is None else batch_size,
            constraints=constraints,
            device_type=device_type,
            bundle=Path(bundle) if isinstance(bundle, str) else bundle,
            optimizer=optimizer,
            sample_batches=batches or (),
            sample_batches_problem=problem,
            dense_memory_bytes=dense_memory_bytes,
        )
        self._cache = PlanCache(Path(cache_dir) if cache_dir is not None else None)
        self._debug = debug
        self._last_plan: Plan | None = None
        self._last_places: Collections = {}

    @property
    def last_plan(self) -> Plan | None:
        """The plan that was made last, with its costs, memory ledger, bound and baselines, for reports."""
        return self._last_plan

    def prove(self, model: nn.Module, pg: dist.ProcessGroup | None = None) -> None:
        """Do nothing if a sharded model has each table of each collection where the last plan has it.

        All ranks must call this; what they hold in memory is compared, not the plan that they were given.

        Args:
            model: the planned one, wrapped in DistributedModelParallel.
            pg: of all ranks, for tensors on the CPU. None: the default group.

        Raises:
            DropInError: on every rank: a table is elsewhere or computed otherwise, or one has no plan yet.
        """
        group = _group(pg, asked="prove", otherwise="initialize it")
        plan = together(self._made_plan, group)
        try:
            prove_sharding(model, plan, group, collections=self._last_places)
        except InputError as error:
            raise DropInError(str(error)) from error

    def estimator(self, module: nn.Module, sharders: Sharders | None = None) -> NeuroShardEstimator:
        """Return this planner's cost models as a performance estimator of TorchRec's planner, for one module.

        Raises:
            DropInError: the module cannot be planned.
        """
        return NeuroShardEstimator(question_of(module, sharders, self._settings))

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Return the plan of a module.

        Raises:
            DropInError: the module cannot be planned, or nothing fits.
        """
        question = question_of(module, sharders, self._settings)
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
        group = _group(pg, asked="collective_plan", otherwise="initialize it, or call plan()")
        ranks = dist.get_process_group_ranks(group)
        question = agreed_question(lambda: question_of(module, sharders, self._settings, ranks=ranks), group)
        found = from_rank_0(lambda: self._planned(question).to_json(), group)
        return self._answer(question, Plan.from_json(found, where="the plan of rank 0"))

    def _made_plan(self) -> Plan:
        if self._last_plan is None:
            raise DropInError("prove: this planner has made no plan yet; hint: call collective_plan first")
        return self._last_plan

    def _planned(self, question: Question) -> Plan:
        """Return the plan, from the cache where it was made before. Raises DropInError."""
        cached = self._cache.get(question)
        if cached is not None:
            return cached
        try:
            plan = pipeline.plan(question.request, bundle=question.devices.bundle)
        except PlannerError as error:
            raise DropInError(str(error)) from error
        self._cache.put(question, plan)
        return plan

    def _answer(self, question: Question, plan: Plan) -> ShardingPlan:
        """Return a plan by the paths of the module's collections. Raises DropInError."""
        self._last_plan, self._last_places = plan, question.tables.by_path
        if self._debug:
            logger.info(
                "%d tables on %d devices: %.3g ms predicted for the embedding part of a step (%s)",
                len(plan.tables),
                plan.request.topology.num_devices,
                plan.predicted.total_ms,
                plan.bundle.source,
            )
        try:
            exported = TorchRecPlan.of(
                plan,
                collections=question.tables.by_path,
                compute_device="cuda" if question.devices.compute_device == "cuda" else "cpu",
            )
        except DocumentError as error:
            raise DropInError(str(error)) from error
        return load_sharding_plan(exported)


def _group(given: dist.ProcessGroup | None, *, asked: str, otherwise: str) -> dist.ProcessGroup:
    """Return the group, None: the default one. Raises DropInError if there is none."""
    if given is not None:
        return given
    if not dist.is_initialized():
        raise DropInError(f"{asked}: there is no process group; hint: {otherwise}")
    return cast(dist.ProcessGroup, dist.GroupMember.WORLD)
