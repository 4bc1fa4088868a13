"""TorchRec's ShardingPlanner by NeuroShard's search."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch.distributed as dist
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Topology
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.own_costs import OwnCosts
from neuroshard_planner import pipeline
from neuroshard_planner.errors import PlannerError
from neuroshard_trainer.sharding.live_sharding import Collections, prove_sharding
from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan
from torch import nn
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import Enumerator, ShardingOption, StorageReservation
from torchrec.distributed.planner.types import PlannerError as TorchRecPlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingPlanner

from neuroshard_torchrec.agreement import agreed_question, attempt, from_rank_0, gathered, together
from neuroshard_torchrec.arguments import own_estimators, require_covered, whole_number
from neuroshard_torchrec.asked import Limits
from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.devices import Caps, require_pods_of
from neuroshard_torchrec.errors import DropInError, NoTablesError, of_planner
from neuroshard_torchrec.estimators import NeuroShardEstimator
from neuroshard_torchrec.first_rank import first_of, logger_of
from neuroshard_torchrec.plan_cache import PlanCache
from neuroshard_torchrec.question import PlannerSettings, Question, question_of
from neuroshard_torchrec.sample_batches import SampleBatches, batches_of

BATCH_SIZE = 512
"""Samples per device where none are given, as TorchRec's planner has it."""

logger = logger_of(__name__)


class NeuroShardPlanner(ShardingPlanner):  # type: ignore[misc] # torchrec has no types
    """Plans where a module's tables lie; takes the place of TorchRec's EmbeddingShardingPlanner.

    Args:
        topology: TorchRec's, for its processes and memory, or a NeuroShard topology. None: the process group's.
        batch_size: samples per device. None: the enumerator's, else 512, TorchRec's default.
        enumerator: TorchRec's, whose constraints are kept.
        storage_reservation: TorchRec's; what it reserves is kept free.
        proposer: as partitioner, performance_model, and stats, it tunes TorchRec's search, and has no effect.
        partitioner: see proposer.
        performance_model: see proposer.
        stats: see proposer.
        constraints: TorchRec's, by the table's name.
        debug: log the predicted cost of each plan.
        callbacks: refused.
        timeout_seconds: refused; the search is bound by a count of evaluations.
        plan_loader: TorchRec's; the plan that it has is checked and returned.
        device_type: GPU that the plan is for, of `neuroshard devices`. None: that of the bundle, else this process's.
        bundle: directory of cost models, or a cost model of the user's own. None: the bundled ones of the device.
        optimizer: of the tables. None: what `apply_optimizer_in_backward` or the sharders' fused_params say.
        sample_batches: global batches from which lookups and reuse are measured.
        dense_memory_bytes: of the dense part. None: weights, gradients and two moments of all other parameters.
        cache_dir: plans of equal models, devices and cost models are read from here and written to it.
        others: arguments of later releases of TorchRec, which are refused by name.

    Raises:
        TypeError: an argument is neither this planner's nor TorchRec's.
    """

    def __init__(  # noqa: PLR0917 - TorchRec's arguments in TorchRec's order
        self,
        topology: TorchRecTopology | Topology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Any = None,  # noqa: ANN401 - of TorchRec's types, which have no effect
        partitioner: Any = None,  # noqa: ANN401 - see proposer
        performance_model: Any = None,  # noqa: ANN401 - see proposer
        stats: Any = None,  # noqa: ANN401 - see proposer
        constraints: Limits | None = None,
        debug: bool = True,  # noqa: FBT001, FBT002 - by position, as TorchRec has it
        callbacks: Any = None,  # noqa: ANN401 - refused
        timeout_seconds: int | None = None,
        plan_loader: Any = None,  # noqa: ANN401 - of TorchRec's types, or like them
        *,
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
        _, refused = attempt(
            lambda: require_covered({"callbacks": callbacks, "timeout_seconds": timeout_seconds, **others})
        )
        batches, unreadable = attempt(lambda: batches_of(sample_batches))
        of_enumerator = getattr(enumerator, "_batch_size", None)
        given = (of_enumerator or BATCH_SIZE) if batch_size is None else batch_size
        samples, uncounted = attempt(
            lambda: whole_number(
                given,
                where="batch_size",
                hint=f"the samples of a step on each device, or leave it out for {BATCH_SIZE}",
            )
        )
        self._settings = PlannerSettings(
            topology=topology,
            batch_size=samples or BATCH_SIZE,
            constraints=constraints,
            device_type=device_type,
            bundle=Path(bundle) if isinstance(bundle, str) else bundle,
            optimizer=optimizer,
            sample_batches=batches or (),
            problem=refused or uncounted or unreadable,
            dense_memory_bytes=dense_memory_bytes,
            storage_reservation=storage_reservation,
            enumerator=enumerator,
        )
        self._cache = PlanCache(Path(cache_dir) if cache_dir is not None else None)
        self._debug = debug
        self.plan_loader = plan_loader
        self._last_plan: Plan | None = None
        self._last_places: Collections = {}
        self._last_module: tuple[nn.Module, Sharders | None] | None = None
        tuned = {
            "proposer": proposer,
            "partitioner": partitioner,
            "performance_model": performance_model,
            "stats": stats,
        }
        unused = [name for name, value in tuned.items() if value is not None]
        unused += [f"{name} of the enumerator" for name in own_estimators(enumerator)]
        if unused:
            logger.warning("%s: without effect, as TorchRec's search is not run", ", ".join(unused))
        if of_enumerator not in (None, given):
            logger.warning("batch_size: %s counts, and not the enumerator's %s", given, of_enumerator)

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
        """Return the plan of a module; an empty one where the sharders take no table of it.

        Raises:
            DropInError: the module cannot be planned, or nothing fits.
        """
        self._last_module = (module, sharders)
        stored = self._stored_plan(module, sharders)
        if stored is not None:
            return stored
        try:
            question = question_of(module, sharders, self._settings)
        except NoTablesError:
            self._last_plan, self._last_places = None, {}
            return ShardingPlan({})
        return self._answer(question, self._planned(question))

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Return the same plan on all ranks of a group; rank 0 searches. To be called by all of them.

        The topology may have the devices of one of several equal groups, for DMPCollection (2-D sharding).

        Args:
            module: equal on all ranks.
            sharders: as DistributedModelParallel gets them.
            pg: None: the default group.

        Raises:
            DropInError: on every rank, if the module cannot be planned on any, or ranks have different modules.
        """
        self._last_module = (module, sharders)
        group = _group(pg, asked="collective_plan", otherwise="initialize it, or call plan()")
        with first_of(group):
            given = gathered((Caps.of(self._settings.topology), self.plan_loader is not None), group)
            _, is_stored = given[0]  # a script may read the stored plan on rank 0 alone, which TorchRec's planner asks
            if is_stored:
                stored = from_rank_0(lambda: self._stored_plan(module, sharders), group)
                if stored is not None:
                    return stored
            ranks = dist.get_process_group_ranks(group)
            caps = Caps.least([each for each, _ in given])
            question = agreed_question(
                lambda: question_of(module, sharders, self._settings, ranks=ranks, caps=caps), group
            )
            if question is None:
                self._last_plan, self._last_places = None, {}
                return ShardingPlan({})
            found = from_rank_0(lambda: self._planned(question).to_json(), group)
            return self._answer(question, Plan.from_json(found, where="the plan of rank 0"))

    def hash_planner_context_inputs(self) -> int:
        """Return TorchRec's hash of topology, batch size, enumerator, reservation, and constraints."""
        return cast(int, self._context().hash_planner_context_inputs())

    def hash_planner_context_inputs_str(self) -> str:
        """Return TorchRec's hash of the same in words, which a plan_loader's plan is checked by."""
        return cast(str, self._context().hash_planner_context_inputs_str())

    def get_search_space(self) -> list[ShardingOption] | None:
        """Return None, which in TorchRec means that no options were enumerated."""
        return None

    def get_selected_options(self) -> NoReturn:
        """Refuse: this planner has a plan, and no options of TorchRec's search. Raises DropInError."""
        raise DropInError(
            "get_selected_options: this planner enumerates no options; hint: the returned plan has type, kernel, and "
            "shards of each table, and last_plan the costs and the memory"
        )

    def _context(self) -> EmbeddingShardingPlanner:
        """Return TorchRec's planner with the context of the last module; before that, of what it was given."""
        theirs = self._torchrec_planner()
        if self._last_module is None:
            return theirs
        module, sharders = self._last_module
        self._fill_context(theirs, module, list(get_default_sharders() if sharders is None else sharders))
        return theirs

    def _torchrec_planner(self, **loader: object) -> EmbeddingShardingPlanner:
        """Return TorchRec's planner of the same arguments, which knows stored plans and their contexts."""
        settings = self._settings
        if isinstance(settings.topology, Topology):
            raise DropInError("topology: a stored plan is of TorchRec's Topology; hint: give one")
        return EmbeddingShardingPlanner(
            topology=settings.topology,
            batch_size=settings.batch_size,
            enumerator=settings.enumerator,
            storage_reservation=settings.storage_reservation,
            constraints=settings.constraints,
            **loader,
        )

    def _fill_context(self, theirs: EmbeddingShardingPlanner, module: nn.Module, sharders: Sharders) -> None:
        """Let TorchRec's planner reserve and enumerate, without which it knows no context to hash."""
        theirs._storage_reservation.reserve(  # noqa: SLF001 - as its plan() begins
            topology=theirs._topology,  # noqa: SLF001 - as above
            batch_size=self._settings.batch_size,
            module=module,
            sharders=sharders,
            constraints=self._settings.constraints,
        )
        theirs._enumerator.enumerate(module, sharders)  # noqa: SLF001 - as above

    def _stored_plan(self, module: nn.Module, sharders: Sharders | None) -> ShardingPlan | None:
        """Return the plan_loader's plan, which TorchRec's planner checks. None: it has none. Raises DropInError."""
        if self.plan_loader is None:
            return None
        if self._settings.problem is not None:
            raise self._settings.problem
        theirs = self._torchrec_planner(plan_loader=self.plan_loader)
        given = list(get_default_sharders() if sharders is None else sharders)
        try:
            self._fill_context(theirs, module, given)
            try:
                context = theirs.hash_planner_context_inputs_str()
            except RuntimeError as error:  # PlannerContextFingerprintError, which TorchRec 1.8 has not
                logger.warning("plan_loader: the stored plan cannot be checked, and one is searched: %s", error)
                return None
            theirs._loader_plan_validation(  # noqa: SLF001 - what TorchRec does before it loads
                current_planner_hash=context,
                loaded_plan_hash=self.plan_loader.plan_context_hash(),
            )
            if not self.plan_loader.load():
                return None
            found = theirs.plan(module, given)
        except TorchRecPlannerError as error:
            raise DropInError(f"plan_loader: {' '.join(str(error).split())}", error.error_type) from error
        logger.info("the plan is the stored one of plan_loader; nothing was searched, and last_plan is None")
        self._last_plan = None
        return cast(ShardingPlan, found)

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
            raise of_planner(
                error,
                question.request,
                compute_device=question.devices.compute_device,
                is_reserved=self._settings.storage_reservation is not None,
            ) from error
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
        for path, tables in exported.modules.items():
            if {ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE} <= {each.sharding_type for each in tables.values()}:
                logger.warning(
                    "%s has table_wise tables, as asked, and column_wise ones: each type has a kernel call and an "
                    "exchange, of which one is priced",
                    path or "the module",
                )
        require_pods_of(plan)
        sharded = load_sharding_plan(exported)
        for path, names in question.tables.by_path.items():
            for name, known_as in names.items():
                planned = sharded.plan[path][name]
                sharded.plan[path][name] = replace(planned, **_completed(question.carried.get(known_as, {}), planned))
        return sharded


def _completed(asked: Mapping[str, Any], planned: ParameterSharding) -> Mapping[str, Any]:
    """Return the fields that constraints ask for, with the planned size of a cache where they leave it open."""
    cache = asked.get("cache_params")
    if cache is None or cache.load_factor is not None or planned.cache_params is None:
        return asked
    return {**asked, "cache_params": replace(cache, load_factor=planned.cache_params.load_factor)}


def _group(given: dist.ProcessGroup | None, *, asked: str, otherwise: str) -> dist.ProcessGroup:
    """Return the group, None: the default one. Raises DropInError if there is none."""
    if given is not None:
        return given
    if not dist.is_initialized():
        raise DropInError(f"{asked}: there is no process group; hint: {otherwise}")
    return cast(dist.ProcessGroup, dist.GroupMember.WORLD)
