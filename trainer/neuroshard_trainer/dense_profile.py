"""Counts the dense part of a model, without a device: ``python -m neuroshard_trainer.dense_profile JOB --out FILE``.

The model is built from tensors that have sizes and no memory. Two steps run under torch's trackers of memory
and of floating-point operations; the second is counted, since the optimizer's state comes with the first. Gradients
are kept from step to step, as the buckets of DistributedDataParallel keep them. A third step counts the backward passes
of units as they are where their gradients are not kept.
"""

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from neuroshard_api.documents.batch_choice import DenseProfiles
from neuroshard_api.documents.dense_profile import DenseProfile, features_sha256
from neuroshard_api.documents.document import DocumentError, read_data
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.job.plan_request import dense_signature
from neuroshard_api.job.sizes import batch_sizes
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, inline_tables, tables_of_variant, with_variants
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import run_command
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchrec.modules.embedding_modules import EmbeddingBagCollection, get_embedding_names_by_table
from torchrec.sparse.jagged_tensor import KeyedTensor

from neuroshard_trainer.dense.backward import backward_peaks
from neuroshard_trainer.dense.counts_by_size import Counted, counts_by_size
from neuroshard_trainer.dense.optimizers import DENSE_OPTIMIZERS
from neuroshard_trainer.dense.trackers import counted_step
from neuroshard_trainer.dense.units import unit_modules, units_of
from neuroshard_trainer.dense.variant_counts import together
from neuroshard_trainer.files import write_file
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.model.dlrm import RecommendationModel
from neuroshard_trainer.variants import mean_losses, summed

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def describe_dense(
    model: Callable[[], nn.Module],
    batch: Callable[[], Sequence[object]],
    *,
    tables: Sequence[Table],
    batch_size: int,
    optimizer: MakeOptimizer,
    loss: Callable[[Any], torch.Tensor],
) -> DenseProfile:
    """Count the dense part of any model whose tables are in EmbeddingBagCollections.

    Args:
        model: makes the model. It is called where all tensors are fake, so that even tables of terabytes need nothing.
        batch: makes the arguments of the model's forward, fake as well.
        tables: of the model, as they are planned; several collections take them in the order of their modules.
        batch_size: samples of the batch.
        optimizer: makes the optimizer of the dense parameters; ``foreach=True`` counts what torch does on a GPU.
        loss: from what forward returns to a number.

    Raises:
        InputError: the model has no EmbeddingBagCollection, or torch's trackers do not count as expected.
    """
    with FakeTensorMode():  # a model may name its devices
        return _counted(model, batch, tables=tables, batch_size=batch_size, optimizer=optimizer, loss=loss).profile


def _counted(
    model: Callable[[], nn.Module],
    batch: Callable[[], Sequence[object]],
    *,
    tables: Sequence[Table],
    batch_size: int,
    optimizer: MakeOptimizer,
    loss: Callable[[Any], torch.Tensor],
    device: torch.device | None = None,
) -> Counted:
    """Count a model whose tensors have no memory: they are fake, or made by the model on the meta device.

    The optimizer's numbers of steps are on the CPU, which it reads.
    """
    make = contextlib.nullcontext() if device is None else device
    with make:
        whole = model()
    received = _take_out_tables(whole, batch_size)
    chosen = optimizer(list(whole.parameters()))
    with make:
        arguments = batch()
    inputs = [each for each in arguments if isinstance(each, torch.Tensor)]

    def forward() -> torch.Tensor:
        with make:
            return loss(whole(*arguments))

    step = counted_step(whole, chosen, forward, inputs=inputs)
    modules = unit_modules(whole, step.modules, but=received)
    peaks = backward_peaks(whole, chosen, forward, inputs=inputs, units=[module for _, module in modules])
    units = units_of(modules, step.modules, peaks)
    profile = DenseProfile(
        batch_size_per_device=batch_size,
        features_sha256=features_sha256(tables),
        optimizer=type(chosen).__name__,
        multi_tensor=bool(chosen.defaults.get("foreach")),
        torch_version=torch.__version__,
        input_bytes=sum(each.nbytes for each in inputs),
        weights_bytes=step.weights_bytes,
        gradient_bytes=step.gradient_bytes,
        optimizer_state_bytes=step.optimizer_state_bytes,
        working_bytes=step.working_bytes,
        passes_working_bytes=step.passes_working_bytes,
        optimizer_working_bytes=step.optimizer_working_bytes,
        passes=step.passes,
        units=units,
    )
    return Counted(
        profile=profile,
        forward_working_bytes=step.forward_working_bytes,
        kept_bytes=step.kept_bytes,
        received_bytes=sum(each.received_bytes for each in received),
    )


def dense_profile(job: DLRMTrainingJob, tables: TableSet, *, multi_tensor: bool = True) -> DenseProfile:
    """Count the dense part of a job that NeuroShard's own trainer trains, as `dense_profiles` at its batch size."""
    return dense_profiles(job, tables, (job.spec.model.samples_per_device,), multi_tensor=multi_tensor)[0]


def dense_profiles(
    job: DLRMTrainingJob, tables: TableSet, sizes: Sequence[int], *, multi_tensor: bool = True
) -> tuple[DenseProfile, ...]:
    """Count the dense part of a job that NeuroShard's own trainer trains, at several batch sizes.

    Args:
        job: its model and dense optimizer.
        tables: of the job, of all variants.
        sizes: samples per device. Ask for all at once: most of many follow from a few (`counts_by_size`).
        multi_tensor: whether the optimizer updates all parameters in one call, as torch does on GPUs.
    """
    if not job.spec.variants:
        alone = _of_model(job, tables.tables, sizes, multi_tensor=multi_tensor)
        return tuple(alone[size].profile for size in sizes)
    variants = {
        name: _of_model(own, tables_of_variant(tables.tables, name), sizes, multi_tensor=multi_tensor)
        for name, own in expanded(job).items()
    }
    signature = dense_signature(job)
    return tuple(
        together({name: each[size] for name, each in variants.items()}, tables=tables.tables, signature=signature)
        for size in sizes
    )


def _of_model(
    job: DLRMTrainingJob, tables: Sequence[Table], sizes: Sequence[int], *, multi_tensor: bool
) -> Mapping[int, Counted]:
    """Return the counts of a job's one model by batch size.

    Jobs that differ in nothing that decides a count have one in this process.
    """
    settings, training, signature = job.spec.model, job.spec.training, dense_signature(job)
    kind = DENSE_OPTIMIZERS[training.dense_optimizer]

    def count(size: int) -> Counted:
        found = _counted(
            lambda: RecommendationModel(settings, tables),
            lambda: (torch.empty(size, settings.num_dense_features), None),
            tables=tables,
            batch_size=size,
            optimizer=lambda weights: kind(weights, lr=float(training.dense_learning_rate), foreach=multi_tensor),
            loss=lambda logits: summed(mean_losses(logits, torch.empty(size))),
            device=torch.device("meta"),  # in half the time of fake tensors
        )
        return replace(found, profile=found.profile.model_copy(update={"signature": signature}))

    known = _COUNTED.setdefault(json.dumps([signature, features_sha256(tables), multi_tensor]), {})
    known |= counts_by_size(count, sizes, known=known)
    return known


_COUNTED: dict[str, dict[int, Counted]] = {}


def main(arguments: Sequence[str]) -> ExitCode:
    """Count, write the document, and return the exit code."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: _run(options), extra="trainer")


def _run(options: argparse.Namespace) -> ExitCode:
    job = read_job(options.job)
    tables, sizes = _asked(job, options.tables)
    counted = dense_profiles(job, tables, sizes, multi_tensor=options.device == "cuda")
    write_file(options.out, (counted[0] if len(counted) == 1 else DenseProfiles(profiles=counted)).to_json())
    return ExitCode.OK


class _Receive(torch.autograd.Function):
    """Makes received pooled embeddings, which live as long as the model uses them, like those of an all-to-all."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, num_samples: int, num_columns: int) -> torch.Tensor:  # noqa: ANN401, ARG004
        """Return new embeddings of the graph; a leaf would be alive until the graph is gone."""
        return torch.empty(num_samples, num_columns)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:  # noqa: ANN401, ARG004
        """Drop the gradient, which the all-to-all would send on."""
        return None, None, None


class _PooledEmbeddings(nn.Module):
    """Stands in for tables: returns what a device receives of them."""

    def __init__(self, collection: EmbeddingBagCollection, batch_size: int) -> None:
        super().__init__()
        configs = collection.embedding_bag_configs()
        self._names = [name for names in get_embedding_names_by_table(configs) for name in names]
        self._widths = [config.embedding_dim for config in configs for _ in config.feature_names]
        self._batch_size = batch_size

    @property
    def received_bytes(self) -> int:
        """Bytes that a device receives in a step."""
        columns: int = sum(self._widths)
        return self._batch_size * columns * torch.float32.itemsize

    def forward(self, _lookups: object) -> KeyedTensor:
        """Return the pooled embeddings of the step; shape (samples, columns of all features)."""
        seed = torch.empty(0, requires_grad=True)
        received = _Receive.apply(seed, self._batch_size, sum(self._widths))
        return KeyedTensor(keys=self._names, length_per_key=self._widths, values=received)


def _take_out_tables(model: nn.Module, batch_size: int) -> list[_PooledEmbeddings]:
    """Replace all tables of a model and return the replacements."""
    found = [
        (parent, name, _PooledEmbeddings(child, batch_size))
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, EmbeddingBagCollection)
    ]
    if not found:
        raise InputError("the model has no EmbeddingBagCollection below it; is it sharded already?")
    for parent, name, pooled in found:
        setattr(parent, name, pooled)
    return [pooled for _, _, pooled in found]


def _asked(job: DLRMTrainingJob, file: Path | None) -> tuple[TableSet, tuple[int, ...]]:
    """Return the tables, and the samples per device to count for: those of a plan request, else of the job."""
    if file is None:
        inline = inline_tables(job)
        if inline is None:
            raise InputError(
                "spec.model.embeddingTablesFrom: names a ConfigMap or a file; hint: give its table set with --tables"
            )
        return inline, batch_sizes(job.spec)
    try:
        data = read_data(file) if file.suffix != ".csv" else None
        if isinstance(data, dict) and data.get("schema_version") == PlanRequest.schema_name:
            request = PlanRequest.from_data(data, where=str(file))
            return request.tables, request.batch_sizes if job.spec.model.chooses_batch_size else batch_sizes(job.spec)
        return with_variants(read_table_set(file), job.spec.variants), batch_sizes(job.spec)
    except DocumentError as error:
        raise InputError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuroshard_trainer.dense_profile",
        description="Count the parameters, work and memory of a job's dense part; needs no device and no data.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="file with a DLRMTrainingJob")
    parser.add_argument("--out", type=Path, required=True, help="file of the dense profile")
    parser.add_argument(
        "--tables", type=Path, help="file with the table set, or with a plan request; default: the job's own tables"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda",
        help="what will train: on a GPU the optimizer updates all parameters at once; default: cuda",
    )
    return parser


if __name__ == "__main__":
    logging.getLogger("torch").setLevel(logging.ERROR)
    sys.exit(main(sys.argv[1:]))
