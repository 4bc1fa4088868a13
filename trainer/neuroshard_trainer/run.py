"""From a job and a plan to a finished training, on one of its ranks."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import GuardRecord
from neuroshard_api.job.continuation import continuation_facts, other_facts
from neuroshard_api.job.experimental import ResumePolicy
from neuroshard_api.job.sizes import under_plan
from neuroshard_api.job.stage_commands import CHECKPOINTS_FOLDER, PROGRESS_FILE, STEP_REPORT_FILE, TRIAL_FOLDER
from neuroshard_api.job.training import TrainPipeline
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.trial import MOST_SECONDS, WARM_UP_STEPS
from neuroshard_api.job.variants import inline_tables, without_variants
from neuroshard_api.process.errors import InputError
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from neuroshard_trainer.communication.codecs import Codecs, codecs_of, live_codecs
from neuroshard_trainer.communication.gradient_codec import live_exchange, slowed_optimizer, with_gradient_codec
from neuroshard_trainer.communication.gradient_guard import GradientGuard
from neuroshard_trainer.communication.guard import Guard, resumed_record
from neuroshard_trainer.data.drift import with_statistics
from neuroshard_trainer.data.readers import start_server
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.training_data import DATA_FOLDER, TrainingData, open_training_data, readers_of
from neuroshard_trainer.dense.optimizers import (
    dense_optimizer,
    embedding_sharder,
    replicated_optimizer,
    set_table_rates,
)
from neuroshard_trainer.dense.parallel import prove_dense
from neuroshard_trainer.drift.watch import forget
from neuroshard_trainer.files import storage_error, write_file
from neuroshard_trainer.measure.prometheus import prometheus_writer
from neuroshard_trainer.measure.step_reporter import WINDOW_STEPS, StepReporter
from neuroshard_trainer.measure.tensorboard import Show, show_nothing, tensorboard_writer
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.model.grouped_model import TableCollections, planned_model
from neuroshard_trainer.model.sharded_model import server_model, sharded_model
from neuroshard_trainer.model.variant_model import VariantModel, rate_of_table, trainings
from neuroshard_trainer.notices import (
    log_batch,
    log_repeats,
    warn_of_earlier_checkpoints,
    warn_of_few_repeats,
    warn_of_few_steps,
    warn_of_other_conditions,
)
from neuroshard_trainer.ranks.agreement import agreed, together
from neuroshard_trainer.ranks.devices import DeviceChoice, compute_device
from neuroshard_trainer.ranks.failures import lost_peers
from neuroshard_trainer.ranks.heartbeat import Heartbeat
from neuroshard_trainer.ranks.precision import set_matmul_precision
from neuroshard_trainer.ranks.process import Launched, Process, new_group, start_process
from neuroshard_trainer.ranks.run_identity import file_sha256
from neuroshard_trainer.ranks.tracing import Trace, TracedSteps
from neuroshard_trainer.schedule import Schedule
from neuroshard_trainer.servers.model import NEAR_PATH, ServedModel, ServerModel
from neuroshard_trainer.servers.process import ServerReporter, limit_memory
from neuroshard_trainer.sharding.live_sharding import LiveSharding, prove_sharding
from neuroshard_trainer.sharding.optimizer_step import set_optimizer_step
from neuroshard_trainer.sharding.plan_adapter import read_plan, require_lasting_gradients, sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.saver import Saver
from neuroshard_trainer.state.staging import staging_for
from neuroshard_trainer.state.training_state import TrainingState, widths_of
from neuroshard_trainer.training import TrainingLoop
from neuroshard_trainer.variants import require_plan_for_variants

SHARDING_FILE = "live-sharding.json"
TRACE_FILE = "trace.json"
"""Of rank 0, in Chrome's format."""
TENSORBOARD_FOLDER = "tensorboard"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPaths:
    """Files and folders of a run."""

    plan_file: Path
    run_dir: Path
    data_dir: Path
    """What relative paths of spec.data start from."""
    ready_file: Path | None = None
    """What this process makes when training begins; None: another one of its node does, or nobody asked for it."""
    keeps_checkpoints: bool = True
    """Whether the run directory outlives the workers."""
    unpacked_dir: Path | None = None
    """Where compressed data are unpacked that cannot be next to the data. If unset: a folder of the run directory."""


def train(
    job: DLRMTrainingJob,
    places: RunPaths,
    *,
    device: DeviceChoice = "auto",
    metrics_port: int | None = None,
    traced_steps: TracedSteps | None = None,
) -> None:
    """Train a job under a plan, from the newest checkpoint if there is one. All ranks must call this.

    Args:
        job: what to train, and how.
        places: its files.
        device: what to compute on.
        metrics_port: where rank 0 serves step times to Prometheus. If unset: nowhere.
        traced_steps: steps that rank 0 traces. If unset: none.

    Raises:
        ExpectedError: of the kind that says what to do.
    """
    spec = job.spec
    launched = Launched.from_environment()
    inline = inline_tables(job)
    tables = None if inline is None else inline.tables
    plan = read_plan(places.plan_file, world_size=launched.world_size, tables=tables, has_servers=True)
    job = under_plan(job, plan)
    require_lasting_gradients(plan)
    if spec.variants:
        require_plan_for_variants(plan)
    _make_folder(places.run_dir)
    if launched.rank >= plan.num_devices:
        limit_memory(plan)
    process = start_process(job, plan, launched, device, nccl_log_folder=places.run_dir)
    if spec.model.chooses_batch_size and process.is_first:
        log_batch(job)
    warn_of_other_conditions(job, plan, process)
    run: TrainingLoop | None = None

    def when() -> str:
        return "while the model was set up" if run is None else f"after step {run.step}"

    with (
        lost_peers(when, trains=lambda: run is not None and run.has_trained, peers=process.peers),
        Heartbeat(when, peers=process.peers),
    ):
        run = set_up(job, plan, places, process, metrics_port=metrics_port, traced_steps=traced_steps)
        if places.ready_file is not None:  # the proof is after every rank, for none passes it without the others
            write_file(places.ready_file, "")
        metrics = run.run()
    if process.is_first:
        logger.info("done: %s", ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()) or "no metrics")


def try_out(job: DLRMTrainingJob, places: RunPaths, *, steps: int, device: DeviceChoice = "auto") -> None:
    """Take some steps from the start, and leave a step report of all but the first. All ranks must call this.

    Readers, model, and loop are those of the training; nothing is saved, evaluated, or watched.

    Args:
        job: what is trained.
        places: of the training. What the trial writes is in a folder of the run directory.
        steps: to take; fewer where the data end, or after `MOST_SECONDS`.
        device: what to compute on.

    Raises:
        ExpectedError: of the kind that says what to do.
    """
    tried = trial_of(job, steps)
    launched = Launched.from_environment()
    inline = inline_tables(job)
    tables = None if inline is None else inline.tables
    plan = read_plan(places.plan_file, world_size=launched.world_size, tables=tables)
    tried = under_plan(tried, plan)
    require_lasting_gradients(plan)
    own = replace(places, run_dir=places.run_dir / TRIAL_FOLDER, unpacked_dir=places.run_dir / DATA_FOLDER)
    _make_folder(own.run_dir)
    process = start_process(tried, plan, launched, device, nccl_log_folder=own.run_dir)
    with lost_peers(lambda: "in the trial", trains=lambda: True), Heartbeat(lambda: "in the trial"):
        set_up(tried, plan, own, process, warm_up_steps=WARM_UP_STEPS).try_out(warm_up_steps=WARM_UP_STEPS)


def trial_of(job: DLRMTrainingJob, steps: int) -> DLRMTrainingJob:
    """Return a job with the first steps of another one, and nothing between them but what guards its narrow types."""
    spec = job.spec
    training = spec.training.model_copy(
        update={
            "max_steps": min(steps, spec.training.max_steps or steps),
            "eval_every_steps": steps + 1,
            "log_every_steps": steps + 1,
            "target_auc": None,
            "tensorboard": False,
        }
    )
    of_checkpoints = spec.experimental.checkpoint.model_copy(update={"resume_policy": ResumePolicy.NONE})
    experimental = spec.experimental.model_copy(update={"checkpoint": of_checkpoints, "watch_drift": False})
    checkpoint = spec.checkpoint.model_copy(update={"every_steps": None, "every_seconds": MOST_SECONDS})
    changed = {"training": training, "experimental": experimental, "checkpoint": checkpoint}
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def set_up(
    job: DLRMTrainingJob,
    plan: GivenPlan,
    places: RunPaths,
    process: Process,
    *,
    metrics_port: int | None = None,
    traced_steps: TracedSteps | None = None,
    warm_up_steps: int | None = None,
) -> TrainingLoop:
    """Return the loop that trains a job (see `train`). All ranks must call this. Raises ExpectedError.

    Reports are of all steps after ``warm_up_steps``. If unset: of the last ones.
    """
    spec = job.spec
    tables = plan.trained_tables
    if readers_of(job, process) and not process.is_server:
        start_server()
    planned = without_variants(tables, spec.variants)
    own = without_variants(with_statistics(tables, inline_tables(job)), spec.variants)
    unpacked = places.unpacked_dir or places.run_dir / DATA_FOLDER
    data = open_training_data(job, own, process, root=places.data_dir, spare=unpacked)
    data = _in_collections(data, plan, process)
    other = data.other_lookups(features_of(planned.tables)) if process.is_first else None
    if other is not None:
        logger.warning("%s: measured times will differ from the prediction", other)
    if process.is_first:
        warn_of_few_repeats(plan, data.first_factors())
        log_repeats(data.first_repeats() if spec.has_sessions else {})
    schedule = Schedule.of(spec.training, epoch_samples=data.num_training, global_batch_size=data.global_batch_size)
    warn_of_few_steps(plan, schedule, process)
    set_matmul_precision(spec.training.precision)
    plan_sha256 = _agreed_plan(places.plan_file, process)
    model = (server_job_model if process.is_server else sharded_job_model)(job, plan, process)
    sharding = prove_sharding(model, plan, process.group)
    codecs = live_codecs(model)
    dense = prove_dense(model, plan, process.group)
    gradients = with_gradient_codec(model, plan, device=process.device)
    slowed = slowed_optimizer(plan, spec.training.dense_optimizer)
    if slowed is not None and process.is_first:
        logger.warning("%s", slowed)
    state = TrainingState(
        model=model,
        dense_optimizer=dense_optimizer(model, spec.training, tables_path=TABLES_PATH),
        replicated_optimizer=replicated_optimizer(
            model,
            spec.model.embedding_optimizer.optimizer,
            learning_rate=float(spec.training.embedding_learning_rate),
        ),
        widths=widths_of(sharding),
        gradients=gradients,
    )
    if process.is_first:
        live = LiveSharding(
            plan_sha256=plan_sha256,
            tables=dict(sharding),
            wire=None if codecs is None else codecs.types,
            gradients=live_exchange(model),
            dense=dense,
        )
        write_file(places.run_dir / SHARDING_FILE, live.to_json())
        logger.info("the ranks hold the shards of plan %s", plan_sha256[:12])
    manifest = CheckpointManifest(
        step=0,
        position=0,
        world_size=process.num_trainers,
        global_batch_size=data.global_batch_size,
        plan_sha256=plan_sha256,
        table_widths=dict(state.widths),
        moment_scale=state.moment_scale,
        signature=_signature(job, plan, data),
        text_features=data.text_features,
        carries_gradients=state.carries_gradients,
    )
    in_background = spec.experimental.checkpoint.in_background
    checkpoints = CheckpointFolder(
        places.run_dir / CHECKPOINTS_FOLDER,
        keep=spec.checkpoint.keep,
        group=new_group(spec.experimental.rendezvous.timeout_seconds) if in_background else process.group,
    )
    checkpoints.prepare()
    found = None
    if spec.experimental.checkpoint.resume_policy is ResumePolicy.LATEST:
        found = _resumed(checkpoints, state, manifest)
    elif process.is_first:
        warn_of_earlier_checkpoints(places.run_dir / CHECKPOINTS_FOLDER)
    resumed_from = None
    if found is not None:
        resumed_from, resumed = found
        schedule = Schedule.of(
            spec.training,
            epoch_samples=data.num_training,
            global_batch_size=data.global_batch_size,
            step=resumed.step,
            position=resumed.position,
        )
    reporter = _reporter(
        job,
        plan,
        places,
        process,
        state=state,
        data=data,
        codecs=codecs,
        first_step=schedule.first_step,
        first_sample=schedule.first_position,
        metrics_port=metrics_port,
        window=WINDOW_STEPS if warm_up_steps is None else max(1, schedule.num_steps - warm_up_steps),
    )
    show: Show = show_nothing
    if spec.training.tensorboard and process.is_first:
        show = tensorboard_writer(places.run_dir / TENSORBOARD_FOLDER, first_step=schedule.first_step)
    return TrainingLoop(
        state=state,
        data=data,
        schedule=schedule,
        training=spec.training,
        is_pipelined=spec.experimental.pipeline is TrainPipeline.SPARSE_DIST,
        looks_ahead=plan.servers is not None and plan.request.looks_ahead,
        checkpoint=spec.checkpoint,
        replanning_mode=spec.replanning.mode,
        avoids_slow_nodes=spec.experimental.avoid_slow_nodes,
        keeps_checkpoints=places.keeps_checkpoints,
        saver=Saver(checkpoints, staging=staging_for(process.device) if in_background else None),
        manifest=manifest,
        reporter=reporter,
        process=process,
        progress_file=places.run_dir / PROGRESS_FILE,
        trace=Trace(traced_steps if process.is_first else None, places.run_dir / TRACE_FILE),
        show=show,
        variants=trainings(job),
        guard=None if codecs is None else _guard(job, codecs, data, process, None if found is None else found[1].guard),
        gradient_guard=None
        if gradients is None
        else GradientGuard.of(
            gradients,
            spec.narrow_types.guard,
            process.group,
            None if found is None else found[1].gradient_guard,
        ),
        resumed_from=resumed_from,
    )


def _reporter(
    job: DLRMTrainingJob,
    plan: GivenPlan,
    places: RunPaths,
    process: Process,
    *,
    state: TrainingState,
    data: TrainingData,
    codecs: Codecs | None,
    first_step: int,
    first_sample: int,
    metrics_port: int | None,
    window: int,
) -> StepReporter | ServerReporter:
    """Return the reporter of this rank's steps."""
    experimental, report_file = job.spec.experimental, places.run_dir / STEP_REPORT_FILE
    if process.is_server:
        return ServerReporter()
    if process.is_first and not experimental.watch_drift:
        forget(places.run_dir)
    return StepReporter(
        state.model,
        places.plan_file,
        write=report_file
        if metrics_port is None or not process.is_first
        else prometheus_writer(report_file, metrics_port),
        report_every=job.spec.training.log_every_steps,
        window=window,
        first_step=first_step,
        group=process.trainers_on_host or process.group,
        replicated_optimizer=state.replicated_optimizer,
        samples_per_step=data.global_batch_size,
        drift=places.run_dir if experimental.watch_drift else False,
        drift_conditions=_drift_conditions(job),
        columns=data.columns,
        first_sample=first_sample,
        groups=[each.group for each in plan.deduplication or ()],
        codecs=codecs,
        gradients=state.gradients,
    )


def _guard(
    job: DLRMTrainingJob, codecs: Codecs, data: TrainingData, process: Process, record: GuardRecord | None
) -> Guard:
    """Return the guard of narrow types, which goes on from a checkpoint's. Raises InputError without samples for it."""
    if not data.num_validation:
        raise InputError(
            f"the plan sends {codecs.types.text}, and there are no held-out samples to guard the accuracy with; "
            "hint: set spec.data.validationPercent or evaluationPath, or policy Exact in spec.training.communication"
        )
    settings = job.spec.narrow_types.guard
    maximum = float(settings.max_entropy_increase_percent)
    return Guard(codecs, settings, process.group, resumed_record(record, codecs.types, maximum_percent=maximum))


def _in_collections(data: TrainingData, plan: GivenPlan, process: Process) -> TrainingData:
    """Return the data in batches whose lookups are apart by the plan's collections."""
    served = plan.of_servers
    if served is None:
        return data.deduplicated(plan.deduplication or (), plan.resolved.wire)
    return data.served(served.resolved.tables.tables, has_samples=not process.is_server)


def _agreed_plan(file: Path, process: Process) -> str:
    """Return the hash of the plan file. Raises InputError on all ranks where they have different plans."""
    found = agreed(lambda: file_sha256(file), process.group)
    other = next((rank for rank, each in enumerate(found) if each != found[0]), None)
    if other is not None:
        raise InputError(
            f"{file}: rank {other} has another plan than rank 0 ({found[other][:12]}, {found[0][:12]}); "
            "hint: give all nodes the same file"
        )
    return found[0]


def sharded_job_model(job: DLRMTrainingJob, plan: GivenPlan, process: Process) -> DistributedModelParallel:
    """Return the job's model under a plan. All ranks must call this, servers `server_job_model`. Raises InputError."""
    spec, served = job.spec, plan.of_servers
    variants = trainings(job)
    torch.manual_seed(spec.training.seed)
    model: nn.Module
    if variants:
        whole_model = VariantModel(job, plan.resolved.tables.tables)
        set_table_rates(whole_model.tables, partial(rate_of_table, variants))
        model = whole_model
    elif served is not None:
        model = ServedModel(spec.model, plan.trained_tables.tables, served.resolved.tables.tables)
    else:
        model = planned_model(spec.model, plan)

    def parts() -> tuple[ShardingPlan, EmbeddingBagCollectionSharder]:
        path = TABLES_PATH if served is None else NEAR_PATH
        whole = sharding_plan(plan.of_devices, module_path=path, compute_device=compute_device(process.device))
        return TableCollections.of(plan).divided(whole), _sharder(job, plan, process)

    torchrec_plan, sharder = together(parts, process.group)
    return sharded_model(
        model,
        torchrec_plan,
        sharder,
        device=process.device,
        seed=spec.training.seed,
        seeds={name: each.seed for name, each in variants.items()},
        given=plan,
        group=process.group,
        timeout_seconds=spec.experimental.rendezvous.timeout_seconds,
        trainers=process.trainers,
    )


def server_job_model(job: DLRMTrainingJob, plan: GivenPlan, process: Process) -> ServerModel:
    """Return an embedding server's part of the job's model. Raises InputError."""
    sharder = together(lambda: _sharder(job, plan, process), process.group)
    return server_model(plan, sharder, seed=job.spec.training.seed, group=process.group)


def _sharder(job: DLRMTrainingJob, plan: GivenPlan, process: Process) -> EmbeddingBagCollectionSharder:
    return embedding_sharder(
        job.spec.model.embedding_optimizer.optimizer,
        learning_rate=float(job.spec.training.embedding_learning_rate),
        device=process.device,
        codecs=codecs_of(plan, process.device),
    )


def _resumed(
    checkpoints: CheckpointFolder, state: TrainingState, now: CheckpointManifest
) -> tuple[Path, CheckpointManifest] | None:
    """Take over the newest whole checkpoint and return its folder and what it is of; None: there is none."""
    for folder, manifest in checkpoints.whole():
        others = other_facts(manifest.signature, now.signature)
        if others:
            raise InputError(
                f"{folder}: {others[0]}; "
                "hint: change it back, take another run directory, or set "
                "spec.experimental.checkpoint.resumePolicy: None"
            )
        state.load(
            checkpoints,
            folder,
            manifest.table_widths,
            has_carried=manifest.carries_gradients,
            old_moment_scale=manifest.moment_scale,
        )
        if manifest.carries_gradients and not state.carries_gradients:
            logger.warning("%s: what was left over of gradients is dropped, for nothing carries it any more", folder)
        if state.gradients is not None:
            state.gradients.first_step = manifest.step
        set_optimizer_step(state.model, manifest.step)
        logger.info("going on from step %d of %s", manifest.step, folder)
        if manifest.global_batch_size not in {None, now.global_batch_size}:
            logger.warning(
                "a step has %d samples of all ranks from here on, before it had %d, and learning rates stay as the job "
                "has them; hint: spec.model.batchSizePerDevice times the number of ranks are the samples of a step",
                now.global_batch_size, manifest.global_batch_size,
            )  # fmt: skip
        return folder, manifest
    return None


def _signature(job: DLRMTrainingJob, plan: GivenPlan, found: TrainingData) -> dict[str, str]:
    """Return the facts that a continuation shares: the job's, and those that only the data show."""
    own = with_statistics(plan.request.tables, inline_tables(job))
    facts = continuation_facts(job, own.tables)
    facts["spec.data (training samples)"] = json.dumps(found.num_training)
    if found.text_features:  # without them the signature is that of earlier releases
        facts["spec.data (features of texts)"] = json.dumps(found.text_features)
    return facts


def _drift_conditions(job: DLRMTrainingJob) -> str:
    """Return one hash of the job's fields that decide on the time of a step."""
    spec = job.spec
    parts = [spec.model.model_dump_json(), spec.data.model_dump_json()]
    drift = [each.model_dump_json() for each in (*(spec.experimental.synthetic_drift or ()), *(spec.variants or ()))]
    texts = [*parts, spec.training.precision.value, spec.experimental.pipeline.value, *drift]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error
