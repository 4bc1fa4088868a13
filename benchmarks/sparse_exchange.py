"""Normalized entropy and bytes where only the largest values are sent, in pairs of trainings of equal seeds.

python -m benchmarks.sparse_exchange DATA [--seeds 5] [--records FILE]

The trainings of `narrow_types`, with the largest of pooled embeddings and of their gradients (types TOP32, TOP16, and
TOP8), and with the largest of the dense part's gradients (Threshold at several shares). Bytes are those that rank 0
hands to the process group. Trainings that are in FILE already are not repeated.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.job.training import DenseOptimizer
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.ranks.process import Launched, start_process

from benchmarks.narrow_types import EXACT, Exchange, Trained, command_line, job_of, plan_of, read_records, trained

EXACT_ADAM, EXACT_SGD = "FP32", "FP32, SGD"
SGD_RATE = "0.2"
PERCENT = 100
MOST_CHANGE_PERCENT = 0.1
AIMS = {"embeddings": 6.0, "dense": 10.0}
"""Times fewer bytes that are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A way of exchange, and what is trained with it."""

    exchange: Exchange
    is_sgd: bool = False
    """Whether the dense part has SGD, and not Adam, whose second moments grow by entries that arrive as sums."""
    data: tuple[str, ...] = ("MovieLens-100K", "planted signal")

    @property
    def exact(self) -> str:
        """Name of the exact trainings of its pairs."""
        return EXACT_SGD if self.is_sgd else EXACT_ADAM

    def job(self, data: str, seed: int) -> DLRMTrainingJob:
        """Return the job of a training."""
        job = job_of(data, seed)
        if not self.is_sgd:
            return job
        update = {"dense_optimizer": DenseOptimizer.SGD, "dense_learning_rate": SGD_RATE}
        training = job.spec.training.model_copy(update=update)
        return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


def _embeddings(forward: WireType, backward: WireType, *, carries: bool = False) -> Case:
    return Case(exchange=Exchange(wire=forward, backward=backward, carries_by_place=carries))


def _threshold(keep_percent: float) -> Case:
    kind = GradientType.THRESHOLD
    exchange = GradientExchange(type=kind, keep_percent=keep_percent, refresh_steps=50)
    return Case(exchange=Exchange(gradients=exchange))


def _sgd(case: Case) -> Case:
    return replace(case, is_sgd=True, data=("MovieLens-100K", "longer planted signal"))


CASES: Mapping[str, Case] = {
    EXACT_ADAM: Case(exchange=Exchange()),
    "dense Threshold 5 %": _threshold(5.0),
    "embeddings and gradients TOP16": _embeddings(WireType.TOP16, WireType.TOP16),
    "embeddings FP16, gradients TOP16": _embeddings(WireType.FP16, WireType.TOP16),
    "dense Threshold 1 %": _threshold(1.0),
    "embeddings and gradients TOP32": _embeddings(WireType.TOP32, WireType.TOP32),
    "dense Threshold 0.25 %": _threshold(0.25),
    "embeddings INT8, gradients TOP8": _embeddings(WireType.INT8, WireType.TOP8),
    "embeddings FP16, gradients TOP16, carried": _embeddings(WireType.FP16, WireType.TOP16, carries=True),
    "embeddings and gradients TOP8": _embeddings(WireType.TOP8, WireType.TOP8),
    EXACT_SGD: _sgd(Case(exchange=Exchange())),
    "dense Threshold 5 %, SGD": _sgd(_threshold(5.0)),
    "dense Threshold 1 %, SGD": _sgd(_threshold(1.0)),
    "dense Threshold 0.25 %, SGD": _sgd(_threshold(0.25)),
}
"""By name; the most wanted first."""


def rank(data_dir: Path, out: Path, seeds: int) -> None:
    """Train all pairs on this rank; rank 0 appends each training to a file."""
    first = job_of("MovieLens-100K", 0)
    done = {(each.data, each.kind, each.seed) for each in read_records(out)}
    process = start_process(
        first, plan_of(first, EXACT), Launched.from_environment(), "cpu", nccl_log_folder=out.parent
    )
    for kind, case in CASES.items():
        for data, seed in product(case.data, range(seeds)):
            if (data, kind, seed) in done:
                continue
            found = trained(case.job(data, seed), case.exchange, process, data_dir)
            if process.is_first:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"data": data, "kind": kind, "seed": seed, **found}) + "\n")


def lines_of(found: Sequence[Trained]) -> list[str]:
    """Return the table of pairs."""
    exact = {(each.kind, each.data, each.seed): each for each in found if each.kind in {EXACT_ADAM, EXACT_SGD}}
    lines = [
        "# Normalized entropy and bytes where only the largest values are sent",
        "",
        (
            "The model and data of `narrow-types_*`: two processes with gloo, 512 samples each, tables of 64 columns "
            "with row-wise Adagrad, MovieLens-100K for two epochs, 100,000 synthetic samples with a planted signal for "
            "one, and 500,000 as the longer one. The dense part has Adam at the rate of the example, or SGD at "
            f"{SGD_RATE}. A pair has equal seeds; evaluations are exact. TOP32, TOP16, and TOP8 send 32, 16, and 8 of "
            "each 128 values, and carry nothing on; carried: what was not sent is added to the gradient at its place "
            "in the next batch, which is that of another sample. Threshold is renewed every 50 steps and carries what "
            f"it does not send; exact gradients of the dense part are {dense_bytes():,} bytes a step. Its bytes are "
            "means over all steps but the first two, which are exact. Changes are of the entropy, in percent of the "
            "exact one; below 0: the entropy is lower."
        ),
        "",
        "| data | sent | pairs | fewer bytes | entropy exact | change: mean, least, largest | standard error |",
        "|---|---|---|---|---|---|---|",
    ]
    met: dict[str, list[str]] = {part: [] for part in AIMS}
    for kind, case in CASES.items():
        part = "dense" if case.exchange.gradients else "embeddings"
        means = []
        for data in case.data:
            own = [each for each in found if (each.data, each.kind) == (data, kind) and kind != case.exact]
            pairs = [
                (exact[case.exact, data, each.seed], each) for each in own if (case.exact, data, each.seed) in exact
            ]
            if not pairs:
                continue
            changes = [PERCENT * (narrow.entropy / one.entropy - 1) for one, narrow in pairs]
            error = stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
            fewer = mean(_fewer(one, narrow, part) for one, narrow in pairs)
            lines.append(
                f"| {data} | {kind} | {len(pairs)} | {fewer:.1f} x | {mean(one.entropy for one, _ in pairs):.4f} | "
                f"{mean(changes):+.3f}, {min(changes):+.3f}, {max(changes):+.3f} % | {error:.3f} % |"
            )
            means.append((fewer, mean(changes)))
        if len(means) == len(case.data) and all(
            fewer >= AIMS[part] and change < MOST_CHANGE_PERCENT for fewer, change in means
        ):
            met[part].append(kind)
    named = {part: "; ".join(kinds) or "none" for part, kinds in met.items()}
    most = f"entropy less than {MOST_CHANGE_PERCENT} % higher in the mean"
    return [
        *lines,
        "",
        "| asked for | the paper's (arXiv 2010.08899) | met on both data by |",
        "|---|---|---|",
        (
            f"| pooled embeddings and their gradients: {AIMS['embeddings']:g} x fewer bytes, {most} | 20 x in model "
            f"parallelism, no loss | {named['embeddings']} |"
        ),
        (
            f"| dense gradients: {AIMS['dense']:g} x fewer, likewise | 100 x in data parallelism, to parameter "
            f"servers, no loss | {named['dense']} |"
        ),
        "",
        (
            "MX4 in both directions sends 7.5 x fewer bytes; its changes on the same model and data are in "
            "`narrow-types_*`."
        ),
    ]


def _fewer(one: Trained, narrow: Trained, part: str) -> float:
    """Return the bytes of exact exchange over those of a training."""
    return dense_bytes() / narrow.gradient_bytes if part == "dense" else one.embedding_bytes / narrow.embedding_bytes


def dense_bytes() -> int:
    """Return the bytes of the dense part's gradients in FP32."""
    job = job_of("MovieLens-100K", 0)
    tables = job.spec.model.inline_tables(job.metadata.name)
    assert tables is not None
    model = RecommendationModel(job.spec.model, tables.tables)
    return sum(
        4 * weight.numel() for name, weight in model.named_parameters() if not name.startswith(f"{TABLES_PATH}.")
    )


def main() -> None:
    """Train, and write the result."""
    command_line("sparse-exchange", str(__doc__), rank=rank, lines_of=lines_of)


if __name__ == "__main__":
    main()
