"""``python -m neuroshard_trainer.export``: writes the newest whole checkpoint of a run for serving.

OUT/model.json     what it was made from: step, plan, features in their order, and the preprocessing of raw data
OUT/predict.py     logits of raw rows: a copy of ``neuroshard_trainer/predict.py``
OUT/model.pt       plain state dict: torch.load(..., weights_only=True)
OUT/quantized.pt   TorchScript with TorchRec's quantized tables: torch.jit.load
"""

import argparse
import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.job.stage_commands import CHECKPOINTS_FOLDER
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, inline_tables, tables_of_variant
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import run_command

from neuroshard_trainer import predict
from neuroshard_trainer.data.drift import with_statistics
from neuroshard_trainer.data.formats import dense_columns, preprocessing_of
from neuroshard_trainer.data.missing import MEANS_FILE, kept_means
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.training_data import DATA_FOLDER
from neuroshard_trainer.files import storage_error, write_file
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.serving import (
    DESCRIPTION_FILE,
    MODEL_FILE,
    QUANTIZED_FILE,
    QuantizedType,
    quantized,
    served_model,
    whole_state,
)
from neuroshard_trainer.sharding.plan_adapter import read_any_plan
from neuroshard_trainer.state.checkpoint import newest_whole
from neuroshard_trainer.state.variant_checkpoint import JOB_FILE, require_finite, take_out

PREDICT_FILE = "predict.py"

logger = logging.getLogger(__name__)


def export(
    job: DLRMTrainingJob,
    plan: GivenPlan,
    run_dir: Path,
    out: Path,
    *,
    quantized_type: QuantizedType | None = None,
    variant: str | None = None,
) -> ExportedModel:
    """Write the newest whole checkpoint of a run for serving.

    Args:
        job: that it was trained by.
        plan: that it was trained under.
        run_dir: of the trainer.
        out: folder of the files; an earlier export there is replaced as a whole.
        quantized_type: of the tables in ``quantized.pt``. None: it is not written.
        variant: the one of the job's that is written. None: it has none.

    Raises:
        InputError: there is no checkpoint, or it is of another model, or the job has no such variant, or it diverged.
        DataError: spec.data does not fit the model.
        StorageError: the checkpoint cannot be read, or the files cannot be written.
    """
    trained, variants = with_statistics(plan.trained_tables, inline_tables(job)).tables, expanded(job)
    if (variant or "") not in (variants or [""]):
        names = ", ".join(variants)
        found_name = "is missing" if variant is None else f"is {variant!r}"
        raise InputError(
            f"--variant: {found_name}, and the job has {names or 'no variants'}; hint: "
            + ("name one of them" if names else "leave it out")
        )
    tables = trained
    if variant is not None:
        job, tables = variants[variant], tables_of_variant(trained, variant)
    folder = run_dir / CHECKPOINTS_FOLDER
    found = newest_whole(folder)
    if found is None:
        raise InputError(f"{folder}: holds no whole checkpoint; hint: train first, or name the trainer's run directory")
    path, manifest = found
    features, num_dense = features_of(tables), job.spec.model.num_dense_features
    means = _means(job, run_dir) if job.spec.data.missing is Missing.MEAN else None
    preprocessing = preprocessing_of(
        job.spec.data, features, num_dense=num_dense, means=means, texts=manifest.text_features
    )
    state = whole_state(path, variant=variant)
    if variant is not None:
        require_finite(state, variant)
    model = served_model(job.spec.model, tables, state)
    files: dict[str, Callable[[Path], object]] = {MODEL_FILE: lambda file: torch.save(state, file)}
    if quantized_type is not None:
        script = quantized(model, quantized_type)
        files[QUANTIZED_FILE] = lambda file: script.save(str(file))
    description = ExportedModel(
        step=manifest.step,
        plan_sha256=manifest.plan_sha256,
        num_dense_features=num_dense,
        features=tuple(feature.name for feature in features),
        quantized_type=None if quantized_type is None else quantized_type.value,
        data_format=job.spec.data.format,
        dataset=job.spec.data.dataset,
        label_column=job.spec.data.label_column,
        preprocessing=preprocessing,
        model=job.spec.model,
        tables=tables,
    )
    files[PREDICT_FILE] = lambda file: write_file(file, inspect.getsource(predict))
    files[DESCRIPTION_FILE] = lambda file: write_file(file, description.to_json())
    _replace(out, files)
    return description


def _means(job: DLRMTrainingJob, run_dir: Path) -> Mapping[str, float]:
    """Return the means that a run filled missing numbers with, of all dense columns. Raises InputError."""
    folder = run_dir / DATA_FOLDER
    means = kept_means(folder)
    names = dense_columns(job.spec.data, job.spec.model.num_dense_features)
    absent = next((name for name in names if name not in (means or {})), None)
    if means is None or absent is not None:
        raise InputError(
            f"{folder / MEANS_FILE}: has no mean of column {absent!r}, which spec.data.missing: Mean fills in; "
            "hint: name the run directory of the training"
        )
    return means


def main(arguments: Sequence[str]) -> ExitCode:
    """Export and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    return run_command(lambda: _run(options), extra="trainer")


def _run(options: argparse.Namespace) -> ExitCode:
    kind = None if options.quantized is None else QuantizedType(options.quantized)
    job, plan = read_job(options.job), read_any_plan(options.plan)
    if options.resumable:
        if options.variant is None or kind is not None:
            raise InputError("--resumable: takes a checkpoint of a variant alone; hint: give --variant, no --quantized")
        path = take_out(job, plan, options.run_dir, options.out, variant=options.variant)
        sys.stdout.write(f"checkpoint {path} and the job {options.out / JOB_FILE} written\n")
        return ExitCode.OK
    description = export(job, plan, options.run_dir, options.out, quantized_type=kind, variant=options.variant)
    sys.stdout.write(f"step {description.step} exported to {options.out}\n")
    return ExitCode.OK


def _replace(out: Path, files: Mapping[str, Callable[[Path], object]]) -> None:
    """Write all files, then put them in the place of an earlier export, the description last. Raises StorageError.

    Where writing fails, the earlier export stays; where this process dies between, there is no description.
    """
    parts = {name: out / f".{name}.part" for name in files}
    path = out
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, save in files.items():
            path = out / name
            save(parts[name])
        for name in (DESCRIPTION_FILE, QUANTIZED_FILE):
            path = out / name
            path.unlink(missing_ok=True)
        for name, part in parts.items():
            path = out / name
            part.replace(path)
    except OSError as error:
        raise storage_error(path, error) from error
    except RuntimeError as error:  # as torch's writer of zip files says it
        raise storage_error(path, OSError(str(error).splitlines()[0])) from error
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuroshard_trainer.export", description="Write a trained model for serving; needs no other process."
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="the DLRMTrainingJob that it was trained by")
    parser.add_argument("--plan", type=Path, required=True, help="the plan that it was trained under")
    parser.add_argument("--run-dir", type=Path, required=True, help="the trainer's folder, with its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument(
        "--quantized",
        choices=[kind.value for kind in QuantizedType],
        help="also write TorchRec's quantized inference model with tables of this type; default: the state dict only",
    )
    parser.add_argument(
        "--resumable",
        action="store_true",
        help="write the checkpoint of a variant alone, which its own job resumes, in place of a model for serving",
    )
    parser.add_argument("--variant", help="the variant that is written, where the job has spec.variants")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
