"""What narrow types and their guard do to normalized entropy: pairs of trainings of equal weights and batches.

python -m benchmarks.narrow_types DATA [--seeds 5] [--records FILE]

Two processes of this machine train MovieLens-100K, or synthetic samples with a planted signal, with exact exchange and
in each way of exchange; a pair has the seed of its weights and of the order of its samples. Evaluations are exact.
Trainings that are in FILE already are not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import yaml
from fbgemm_gpu.quantize_comm import QuantizationContext
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType, WireTypes
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.progress import GuardRecord, GuardState
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.job.communication import CommunicationGuard
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.communication.codecs import Codecs, live_codecs
from neuroshard_trainer.communication.gradient_codec import WHOLE_STEPS, with_gradient_codec
from neuroshard_trainer.communication.guard import Guard
from neuroshard_trainer.communication.largest_values import LargestValues
from neuroshard_trainer.data.training_data import TrainingData, open_training_data
from neuroshard_trainer.dense.optimizers import dense_optimizer
from neuroshard_trainer.metrics import Evaluation
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.ranks.process import Launched, Process, start_process
from neuroshard_trainer.run import sharded_job_model
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.results_file import write_result

WORLD_SIZE = 2
EXAMPLE = Path(__file__).parents[1] / "examples" / "02-movielens.yaml"
EPOCHS = {"MovieLens-100K": 2, "planted signal": 1, "longer planted signal": 1}
SYNTHETIC_SAMPLES = {"planted signal": 100_000, "longer planted signal": 500_000}
"""The longer one shows whether a training recovers from a broken codec, which takes steps after it is suspended."""
EXACT = WireTypes()
EXACT_NAME = "FP32"
CHECK_EVERY = 5
"""Steps from one check of the guard to the next, at its default maximum."""
PERCENT = 100
RECOVERED_PERCENT = 0.2
"""Of the normalized entropy: as near to exact exchange a training with a broken codec is to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A way of exchange."""

    wire: WireType = WireType.FP32
    """Of pooled embeddings, in both directions. FP16 where values are rounded otherwise before and after."""
    backward: WireType | None = None
    """Of their gradients. None: as forward."""
    carries_by_place: bool = False
    """Whether what a gradient's largest values leave over is added to the one that has its place in the next step."""
    rounded: tuple[torch.dtype, torch.dtype] | None = None
    """Types whose values are exchanged, forward and backward, in place of a codec that a CPU does not have."""
    gradients: GradientExchange | None = None
    """Of the dense part. None: exact."""
    is_guarded: bool = False
    is_broken: bool = False
    """Whether the codec of the forward exchange doubles what it decodes."""
    data: tuple[str, ...] = ("MovieLens-100K", "planted signal")


EXCHANGES: Mapping[str, Exchange] = {
    EXACT_NAME: Exchange(data=tuple(EPOCHS)),
    "INT8, guarded": Exchange(wire=WireType.INT8, is_guarded=True),
    "INT8, broken and guarded": Exchange(wire=WireType.INT8, is_guarded=True, is_broken=True, data=tuple(EPOCHS)),
    "BF16 (rounded)": Exchange(wire=WireType.FP16, rounded=(torch.bfloat16, torch.bfloat16)),
    "FP8 (rounded)": Exchange(wire=WireType.FP16, rounded=(torch.float8_e4m3fn, torch.float8_e5m2)),
    "gradients BF16": Exchange(gradients=GradientExchange(type=GradientType.BF16)),
    "gradients FP16": Exchange(gradients=GradientExchange(type=GradientType.FP16)),
    "gradients Threshold": Exchange(gradients=GradientExchange(type=GradientType.THRESHOLD, refresh_steps=50)),
    "FP16": Exchange(wire=WireType.FP16),
    "MX4": Exchange(wire=WireType.MX4),
}
"""By name; the most wanted first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One training."""

    data: str
    kind: str
    seed: int
    entropy: float
    """Normalized, of held-out samples."""
    auc: float
    checks: tuple[float | None, ...] = ()
    """Change of the held-out loss in percent by check of the guard. None: exchange was exact, or it is not finite."""
    suspended: tuple[int, ...] = ()
    """Steps after which the guard suspended narrow types."""
    embedding_bytes: float = 0.0
    """Pooled embeddings and their gradients that rank 0 handed to all-to-alls, per step."""
    gradient_bytes: float = 0.0
    """Gradients of the dense part that a codec handed to all-gathers, per step but the first ones, which are exact."""


class RoundedValues:
    """Stands in for FBGEMM's codec: values travel in FP32, rounded to those of a narrower type.

    FP8 is rounded as FBGEMM does it: in groups, each scaled so that its largest value is the type's largest.
    """

    quantized_dtype = torch.float32

    def __init__(self, kind: torch.dtype) -> None:
        self._kind = kind

    def create_context(self) -> QuantizationContext:
        """Return a context: the exchange is encoded."""
        return QuantizationContext()

    def padded_size(self, values: torch.Tensor, *_: object) -> tuple[int, int]:
        """Return the columns, without padding."""
        return values.shape[-1], 0

    def calc_quantized_size(self, input_len: int, ctx: object = None) -> int:  # noqa: ARG002 - TorchRec's signature
        """Return the number of values."""
        return input_len

    def encode(self, input_tensor: torch.Tensor, ctx: object = None) -> torch.Tensor:  # noqa: ARG002
        """Return the rounded values."""
        values = input_tensor
        if self._kind.itemsize > 1:
            return values.to(self._kind).float()
        group = WIRE_FORMATS[WireType.FP8].group_values
        flat = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % group)).view(-1, group)
        largest = flat.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        scale = largest / torch.finfo(self._kind).max
        return ((flat / scale).to(self._kind).float() * scale).flatten()[: values.numel()].view(values.shape)

    def decode(self, input_tensor: torch.Tensor, ctx: object = None) -> torch.Tensor:  # noqa: ARG002
        """Return the values."""
        return input_tensor


class CarriedByPlace(LargestValues):
    """A codec that adds what it left over to what it encodes next: of another sample, for batches have no places."""

    def __init__(self, kind: WireType) -> None:
        super().__init__(kind)
        self._carried: torch.Tensor | None = None

    def encode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:
        """Return positions and values of the largest sums."""
        values = input_tensor if self._carried is None else input_tensor + self._carried
        encoded = super().encode(values, ctx)
        self._carried = values - self.decode(encoded, ctx)
        return encoded


def job_of(data: str, seed: int) -> DLRMTrainingJob:
    """Return the example's job on some data."""
    raw: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec = raw["spec"]
    spec["training"] |= {"seed": seed, "epochs": EPOCHS[data]}
    spec["experimental"] = {**spec.get("experimental", {}), "pipeline": "None", "data": {"readerProcesses": 0}}
    if data in SYNTHETIC_SAMPLES:
        spec["data"] = {"format": "Synthetic", "numSamples": SYNTHETIC_SAMPLES[data]}
    return DLRMTrainingJob.from_data(raw)


def plan_of(job: DLRMTrainingJob, types: WireTypes, gradients: GradientExchange | None = None) -> GivenPlan:
    """Return whole tables on the processes in turn, exchanged in these types, and how gradients are exchanged."""
    tables = job.spec.model.inline_tables(job.metadata.name)
    assert tables is not None
    preset = load_presets()["h100-80gb"]
    request = PlanRequest(
        tables=tables,
        topology=preset.topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=job.spec.model.samples_per_device,
        optimizer=job.spec.model.embedding_optimizer.optimizer,
        wire=None if types.is_exact else types,
        gradients=gradients,
    )
    placements = tuple(
        TablePlacement(
            name=table.name,
            sharding_type=ShardingType.TABLE_WISE,
            shards=(Shard(device=index % WORLD_SIZE, num_rows=table.num_embeddings, num_columns=table.embedding_dim),),
        )
        for index, table in enumerate(tables.tables)
    )
    return GivenPlan(algorithm=Algorithm.DIM_GREEDY, tables=placements, request=request)


def trained(job: DLRMTrainingJob, exchange: Exchange, process: Process, data_dir: Path) -> dict[str, Any]:
    """Train a job once, and return the results. All ranks must call this."""
    types = WireTypes(forward=exchange.wire, backward=exchange.backward or exchange.wire)
    plan = plan_of(job, types, exchange.gradients)
    data = open_training_data(job, plan.request.tables, process, root=data_dir, spare=data_dir)
    model = sharded_job_model(job, plan, process)
    gradients = with_gradient_codec(model, plan, device=process.device)
    assert (gradients is None) == (exchange.gradients is None)
    codecs = live_codecs(model)
    assert (codecs is None) == (plan.resolved.wire is None)
    assert codecs is None or codecs.types == plan.resolved.wire
    if codecs is not None:
        _change(codecs, exchange)
    guard, loss = None, _held_out_loss(model, data, process)
    if exchange.is_guarded:
        assert codecs is not None
        guard = Guard(codecs, CommunicationGuard(check_every_steps=CHECK_EVERY), process.group, GuardRecord())
    checks: list[float | None] = []
    suspended: list[int] = []
    of_dense = dense_optimizer(model, job.spec.training, tables_path=TABLES_PATH)
    optimizer = StepOptimizer(model, of_dense, None, job.spec.training, step=0)
    size = data.global_batch_size
    positions = range(0, job.spec.training.epochs * data.num_training - size + 1, size)
    sent = Counter[str]()
    for step, batch in enumerate(data.training(positions, process.device), start=1):
        with counted(sent):
            optimizer.zero_grad()
            loss_value = binary_cross_entropy_with_logits(model(*batch.inputs).float(), batch.labels)
            torch.autograd.backward(loss_value)
            optimizer.step()
        if guard is not None and guard.is_due(step):
            was_narrow = guard.record.state is GuardState.NARROW
            with torch.no_grad():
                guard.check(step, loss)
            checks.append(guard.record.change_percent if was_narrow else None)
            if was_narrow and guard.record.state is GuardState.SUSPENDED:
                suspended.append(step)
    model.eval()
    evaluation = Evaluation(process.group)
    if codecs is not None:
        codecs.switch(on=False)
    with torch.no_grad():
        for batch in data.validation(process.device):
            evaluation.add(model(*batch.inputs).float()[: batch.num_real], batch.labels[: batch.num_real])
    found = evaluation.compute().by_name
    return {
        "entropy": found["normalized_entropy"],
        "auc": found["auc"],
        "checks": checks,
        "suspended": suspended,
        "embedding_bytes": sent["embeddings"] / len(positions),
        "gradient_bytes": sent["gradients"] / (len(positions) - WHOLE_STEPS),
    }


@contextmanager
def counted(sent: Counter[str]) -> Iterator[None]:
    """Add the bytes that this rank hands to all-to-alls of values, and to all-gathers of thresholded gradients."""
    exchange, gather = dist.all_to_all_single, dist.all_gather

    def exchanged(output: torch.Tensor, input: torch.Tensor, *options: Any, **more: Any) -> Any:  # noqa: A002, ANN401 - torch's
        if input.dtype not in {torch.int32, torch.int64}:  # of indices
            sent["embeddings"] += input.nbytes
        return exchange(output, input, *options, **more)

    def gathered(outputs: list[torch.Tensor], value: torch.Tensor, *options: Any, **more: Any) -> Any:  # noqa: ANN401
        sent["gradients"] += value.nbytes
        return gather(outputs, value, *options, **more)

    with patch.object(dist, "all_to_all_single", exchanged), patch.object(dist, "all_gather", gathered):
        yield


def _change(codecs: Codecs, exchange: Exchange) -> None:
    """Round values in place of a codec, or break it."""
    forward, backward = codecs.forward, codecs.backward
    if exchange.rounded is not None:
        forward._codec, backward._codec = map(RoundedValues, exchange.rounded)  # noqa: SLF001 - no public way
        backward._scale = 1.0  # noqa: SLF001 - it was FP16's
    if exchange.carries_by_place:
        backward._codec = CarriedByPlace(codecs.types.backward)  # noqa: SLF001
    if exchange.is_broken:
        decode = forward._codec.decode  # noqa: SLF001
        forward._codec.decode = lambda *values: 2 * decode(*values)  # type: ignore[method-assign]  # noqa: SLF001


def _held_out_loss(model: torch.nn.Module, data: TrainingData, process: Process) -> Callable[[], torch.Tensor]:
    """Return the measurement of the trainer's guard: the losses of this rank's first held-out batch, added up."""
    batch = next(iter(data.validation(process.device)))

    def loss() -> torch.Tensor:
        logits = model(*batch.inputs).float()[: batch.num_real]
        return binary_cross_entropy_with_logits(logits, batch.labels[: batch.num_real], reduction="sum")

    return loss


def read_records(file: Path) -> list[Trained]:
    """Return the trainings of a file, one of them a line."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    entries = [json.loads(line) for line in lines]
    return [
        Trained(**{**entry, "checks": tuple(entry["checks"]), "suspended": tuple(entry["suspended"])})
        for entry in entries
    ]


def rank(data_dir: Path, out: Path, seeds: int) -> None:
    """Train all pairs on this rank; rank 0 appends each training to a file."""
    launched = Launched.from_environment()
    first = job_of("MovieLens-100K", 0)
    done = {(each.data, each.kind, each.seed) for each in read_records(out)}
    process = start_process(first, plan_of(first, EXACT), launched, "cpu", nccl_log_folder=out.parent)
    for kind, exchange in EXCHANGES.items():
        for data, seed in product(exchange.data, range(seeds)):
            if (data, kind, seed) in done:
                continue
            found = trained(job_of(data, seed), exchange, process, data_dir)
            if process.is_first:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"data": data, "kind": kind, "seed": seed, **found}) + "\n")


def lines_of(found: Sequence[Trained]) -> list[str]:
    """Return the tables of pairs and of the guard."""
    exact = {(each.data, each.seed): each.entropy for each in found if each.kind == EXACT_NAME}
    lines = [
        "# Normalized entropy with narrow types, and their guard",
        "",
        (
            "The model of `examples/02-movielens.yaml` (64 columns), two processes with gloo, tables whole on them in "
            "turn, 512 samples each, no pipeline. MovieLens-100K for two epochs, 100,000 synthetic samples with a "
            "planted signal for one, and 500,000 as the longer one. A pair of trainings has equal seeds; evaluations "
            "are exact. Types of pooled embeddings are those of both directions; FP16 gradients of embeddings are "
            "scaled by 512. A CPU has no codec for BF16 and FP8: their values travel in FP32, rounded to those of the "
            "type (FP8: E4M3 forward, E5M2 backward, in groups of "
            f"{WIRE_FORMATS[WireType.FP8].group_values} with a scale each). Types of the dense part's gradients are "
            "torch's hooks for BF16 and FP16, and Threshold of 5 %, renewed every 50 "
            "steps. Below 0: narrow types ended with the lower entropy."
        ),
        "",
        "| data | exchange | pairs | entropy exact | change: mean, least, largest | standard error of the mean |",
        "|---|---|---|---|---|---|",
    ]
    for data in EPOCHS:
        for kind in list(EXCHANGES)[1:]:
            own = [each for each in found if (each.data, each.kind) == (data, kind)]
            pairs = [(exact[data, each.seed], each.entropy) for each in own if (data, each.seed) in exact]
            if not pairs:
                continue
            changes = [narrow - one for one, narrow in pairs]
            error = stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
            ones = [one for one, _ in pairs]
            lines.append(
                f"| {data} | {kind} | {len(pairs)} | {mean(ones):.4f} ({min(ones):.4f} to {max(ones):.4f}) | "
                f"{mean(changes):+.5f}, {min(changes):+.5f}, {max(changes):+.5f} | {error:.5f} |"
            )
    maximum = float(CommunicationGuard().max_entropy_increase_percent)
    lines += [
        "",
        (
            f"The guard checks every {CHECK_EVERY} steps, at its default maximum of {maximum:g} %. A broken codec "
            f"doubles what it decodes. Recovered: the entropy differs from that of exact exchange by at most "
            f"{RECOVERED_PERCENT:g} %."
        ),
        "",
        "| data | exchange | seed | checks above maximum | largest change | suspended after | entropy | recovered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in sorted(found, key=lambda one: (one.data, one.kind, one.seed)):
        if not each.checks or (each.data, each.seed) not in exact:
            continue
        measured = [change for change in each.checks if change is not None]
        relative = PERCENT * (each.entropy / exact[each.data, each.seed] - 1)
        lines.append(
            f"| {each.data} | {each.kind} | {each.seed} | "
            f"{sum(one > maximum for one in measured)} of {len(measured)} | "
            f"{max(measured):.3g} % | {', '.join(map(str, each.suspended)) or 'never'} | {relative:+.2f} % | "
            f"{'yes' if abs(relative) <= RECOVERED_PERCENT else 'no'} |"
        )
    return lines


def main() -> None:
    """Train, and write the result."""
    command_line("narrow-types", str(__doc__), rank=rank, lines_of=lines_of)


def command_line(
    topic: str,
    about: str,
    *,
    rank: Callable[[Path, Path, int], None],
    lines_of: Callable[[Sequence[Trained]], list[str]],
) -> None:
    """Train the pairs of a script of this folder on two processes, and write its result; or be one of the processes.

    Args:
        topic: of the result; the script has its name.
        about: the script's docstring.
        rank: trains as a process, with the data, the file of records, and the number of seeds.
        lines_of: the result of all trainings.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder dataset_example of the package recbole")
    parser.add_argument("--seeds", type=int, default=5, help="pairs of each kind and data")
    parser.add_argument("--records", type=Path, help="file of the trainings; default: a temporary one")
    parser.add_argument("--rank-out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_out is not None:
        rank(options.data, options.rank_out, options.seeds)
        sys.stdout.flush()
        os._exit(0)  # as the trainer ends
    with tempfile.TemporaryDirectory() as scratch:
        out = options.records or Path(scratch) / "trained.jsonl"
        launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node"]
        command = [*launcher, str(WORLD_SIZE), "-m", f"benchmarks.{topic.replace('-', '_')}", str(options.data)]
        command += ["--seeds", str(options.seeds), "--rank-out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - ours
        found = read_records(out)
    print(write_result(topic, lines_of(found), packages=("torch", "torchrec", "fbgemm-gpu-cpu")))


if __name__ == "__main__":
    main()
