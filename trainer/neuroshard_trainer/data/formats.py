"""From ``spec.data`` of a job to its samples."""

from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.job_training import Data, DataFormat
from neuroshard_api.tables import TableSet

from neuroshard_trainer.data.movielens import MovieLensSource
from neuroshard_trainer.data.samples import Feature
from neuroshard_trainer.data.source import SampleSource, matching_files
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.errors import DataError, MissingPackageError

DEFAULT_NUM_SAMPLES = 1_000_000
"""Samples of a synthetic epoch where the job names none."""
DEFAULT_LABEL_COLUMN = "label"


def open_source(
    data: Data, tables: TableSet, features: Sequence[Feature], *, num_dense: int, seed: int, root: Path
) -> SampleSource:
    """Return the samples of a job.

    Args:
        data: says where they come from.
        tables: of the model.
        features: of all tables.
        num_dense: dense features of the model.
        seed: of synthetic samples.
        root: what relative paths start from.

    Raises:
        DataError: there are none, or they lack what the model needs.
        MissingPackageError: the format needs pyarrow.
    """
    if data.format is DataFormat.SYNTHETIC:
        count = data.num_samples or DEFAULT_NUM_SAMPLES
        return SyntheticSource(tables, features, num_dense=num_dense, num_samples=count, seed=seed)
    assert data.path is not None, "the job was checked when it was read"
    if data.format is DataFormat.MOVIELENS_100K:
        return MovieLensSource(_movielens_place(data.path, root), features, num_dense=num_dense)
    try:
        from neuroshard_trainer.data.criteo import CriteoSource  # noqa: PLC0415 - needs pyarrow
        from neuroshard_trainer.data.parquet import ParquetSource  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackageError(f"the format {data.format} needs pyarrow ({error}); `pip install pyarrow`") from error
    if data.format is DataFormat.CRITEO_TSV:
        files = matching_files(data.path, root, suffixes=(".tsv", ".txt"))
        return CriteoSource(files, features, num_dense=num_dense)
    return ParquetSource(
        matching_files(data.path, root, suffixes=(".parquet",)),
        features,
        label_column=data.label_column or DEFAULT_LABEL_COLUMN,
        dense_columns=_dense_columns(data, num_dense),
    )


def _movielens_place(path: str, root: Path) -> Path:
    """Return the wheel, or the folder that holds the data set's own files."""
    if (root / path).is_dir():
        folder = root / path
        wheels = sorted(folder.glob("recbole-*.whl"))
        return wheels[-1] if wheels and not (folder / "ml-100k.inter").exists() else folder
    return matching_files(path, root, suffixes=(".whl",))[0]


def _dense_columns(data: Data, num_dense: int) -> Sequence[str]:
    if data.dense_columns is None:
        return [f"dense_{position}" for position in range(num_dense)]
    if len(data.dense_columns) != num_dense:
        raise DataError(
            f"spec.data.denseColumns: names {len(data.dense_columns)} columns, spec.model.numDenseFeatures is "
            f"{num_dense}; make them equal"
        )
    return data.dense_columns
