"""Metrics of an exported model on a data set: readers, preprocessing, and metrics are those of the training.

    DATA --reader of its format--> samples --model of the export, on the CPU--> logits --> metrics

A reader that preprocesses in another way than the one that the model was trained with is refused: the model would be
another one.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.model_evaluation import ModelEvaluation
from neuroshard_api.documents.preprocessing import IdForm, Preprocessing
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.job.training import NEEDS_NO_PATH, WITH_NAMED_COLUMNS, Data, DataFormat
from neuroshard_api.process.errors import DataError, InputError
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.formats import format_of, open_source, preprocessing_of
from neuroshard_trainer.data.order import WHOLE_PERCENT, SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import SampleSource, TypedSource
from neuroshard_trainer.metrics import Evaluation
from neuroshard_trainer.serving import exported_description, exported_model, exported_script

Model = Callable[[torch.Tensor, KeyedJaggedTensor], torch.Tensor]


def evaluate(
    export: Path,
    data: str,
    *,
    quantized: bool,
    max_samples: int | None,
    batch_size: int = 8192,
) -> ModelEvaluation:
    """Return the metrics of an export on data.

    Args:
        export: folder of the export.
        data: file, folder, pattern, or URL; relative ones begin in the working directory. Its format is that of the
            training, unless the end of its name is that of another one.
        quantized: whether ``quantized.pt`` computes, and not ``model.pt``.
        max_samples: of all; they come from blocks at even distances. None: no limit.
        batch_size: samples at a time.

    Raises:
        DocumentError, InputError: the export has no such model, or the data is not what it was trained on.
        DataError: the data cannot be read, or has no samples.
        StorageError: the model cannot be read.
        MissingPackageError: the format needs a package.
    """
    description = exported_description(export)
    read_format = format_of(data, description.data_format)
    described = _data(description, read_format, data)
    _require_equal_preprocessing(description, described)
    model: Model = exported_script(export, description) if quantized else exported_model(export, description)
    evaluation = Evaluation(None)
    with TemporaryDirectory() as spare, torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")  # and torchrec: nothing that users can fix
        batches = _batches(description, described, batch_size=batch_size, max_samples=max_samples, spare=Path(spare))
        for batch in batches:
            logits = model(batch.dense, batch.lookups).float()
            evaluation.add(logits[: batch.num_real], batch.labels[: batch.num_real])
    found = evaluation.compute()
    if found.loss is None:
        raise DataError(f"{data}: has no samples; hint: name other files")
    return ModelEvaluation(
        step=description.step,
        plan_sha256=description.plan_sha256,
        tables=str(description.quantized_type) if quantized else _table_types(description),
        data=data,
        data_format=read_format.value,
        num_samples=found.num_samples,
        num_positive=found.num_positive,
        loss=found.loss,
        normalized_entropy=found.normalized_entropy,
        auc=found.auc,
        auc_error=found.auc_error,
        no_auc=found.why_no_auc(),
        calibration=found.calibration,
    )


def _data(description: ExportedModel, read_format: DataFormat, data: str) -> Data:
    """Return the place of the samples, as a job would name it. Raises InputError, DocumentError."""
    if read_format in NEEDS_NO_PATH:
        raise InputError(
            f"{data}: its name tells no format, and the model was trained on {read_format.value}, which has no files"
            "; hint: give a file, such as one that ends in .parquet, or a pattern"
        )
    names: dict[str, object] = {}
    if read_format in {*WITH_NAMED_COLUMNS, DataFormat.NPZ} and description.label_column is not None:
        names["labelColumn"] = description.label_column
    if read_format in WITH_NAMED_COLUMNS:
        dense = description.preprocessing.dense
        names["denseColumns"] = [rule.name for rule in dense]
        if dense:
            names["missing"] = dense[0].missing.value  # one for all columns
    return validated(Data, {"format": read_format.value, "path": data, **names}, where="DATA")


def _require_equal_preprocessing(description: ExportedModel, data: Data) -> None:
    """Do nothing if the reader of the data does what the model was trained with. Raises InputError."""
    found = preprocessing_of(
        data,
        features_of(description.tables),
        num_dense=description.num_dense_features,
        means=_means(description),
        texts=_texts(description),
    )
    for trained, read in zip(_rules(description.preprocessing), _rules(found), strict=False):  # a reader checks numbers
        for expected, word in zip(trained, read, strict=False):
            if expected != word:
                raise InputError(
                    f"{data.path}: the reader of {data.format.value} has {word}, the model was trained with "
                    f"{expected} of {description.data_format.value}; hint: give data of that format"
                )


def _texts(description: ExportedModel) -> Sequence[str]:
    """Return the features whose ids were texts in training, by the types of the data."""
    return [each.feature for each in description.preprocessing.lookups if each.id_form is IdForm.TEXT]


def _require_equal_types(description: ExportedModel, source: SampleSource) -> None:
    """Do nothing if ids are of the types of the training: others look up other rows. Raises InputError."""
    if not isinstance(source, TypedSource):
        return
    trained = _texts(description)
    for name in sorted({*trained} ^ {*source.text_features}):
        kinds = ("integers", "texts") if name in trained else ("texts", "integers")
        raise InputError(
            f"DATA: column {name!r}: holds {kinds[0]}, the model was trained on {kinds[1]}"
            "; hint: write the column with the type that it had in training"
        )


def _means(description: ExportedModel) -> Mapping[str, float]:
    """Return the numbers that missing ones were filled with in training, by dense feature."""
    return {each.name: each.fill for each in description.preprocessing.dense if each.fill is not None}


def _rules(preprocessing: Preprocessing) -> tuple[Sequence[str], Sequence[str]]:
    """Return the rules of the dense features and those of the lookups in words, without the names of columns."""
    dense = [
        f"{each.transformation.value} for dense feature {position}"
        + ("" if each.offset is None else f" (offset {each.offset:g}, divisor {each.divisor:g})")
        + ("" if each.fill is None else f" with {each.fill:g} where it is missing")
        for position, each in enumerate(preprocessing.dense)
    ]
    lookups = [
        f"{each.id_rule.value} for {each.id_form.value} ids of {each.feature!r}" for each in preprocessing.lookups
    ]
    return dense, lookups


def _batches(
    description: ExportedModel, data: Data, *, batch_size: int, max_samples: int | None, spare: Path
) -> Iterator[Batch]:
    """Yield all samples in their stored order, the last batch filled up."""
    features = features_of(description.tables)
    source = open_source(
        data,
        TableSet(name="exported", tables=description.tables),
        features,
        num_dense=description.num_dense_features,
        seed=0,
        root=Path.cwd(),
        spare=spare,
        setting="DATA",
        means=_means(description),
    )
    _require_equal_types(description, source)
    order = SampleOrder(
        source.block_sizes, validation_percent=WHOLE_PERCENT, seed=0, shuffle=False, max_validation=max_samples
    )
    maker = BatchMaker(source, order, features, rank=0, world_size=1, batch_size=batch_size)
    for position in range(0, order.num_validation, batch_size):
        yield Batch.of(maker.validation(position), description.features)


def _table_types(description: ExportedModel) -> str:
    return ", ".join(dict.fromkeys(table.data_type.value for table in description.tables))
