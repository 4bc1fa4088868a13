"""From ``spec.data`` of a job to its samples."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.preprocessing import Missing, Preprocessing
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.feature_columns import DEFAULT_LABEL_COLUMN
from neuroshard_api.job.training import Data, DataFormat, SyntheticSessions
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import DataError, MissingPackageError

from neuroshard_trainer.data import criteo, criteo_binary, movielens
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.criteo_binary import CriteoBinarySource
from neuroshard_trainer.data.files import DataFile, matching_files
from neuroshard_trainer.data.line_index import INDEX_SUFFIX
from neuroshard_trainer.data.movielens import MovieLensSource
from neuroshard_trainer.data.npz import NpzSource
from neuroshard_trainer.data.preprocessing import as_stored, numbered
from neuroshard_trainer.data.samples import Feature, features_of
from neuroshard_trainer.data.source import SampleSource, text_features
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.data.unpack import COMPRESSED

if TYPE_CHECKING:
    from neuroshard_trainer.data.csv_source import CsvSource
    from neuroshard_trainer.data.parquet import ParquetSource

DEFAULT_NUM_SAMPLES = 1_000_000
"""Samples of a synthetic epoch where the job names none."""
_TEXT = (".tsv", ".txt")
_SUFFIXES = {
    DataFormat.CRITEO_TSV: (*_TEXT, *(text + packed for text in _TEXT for packed in COMPRESSED)),
    DataFormat.CRITEO_BINARY: (".npy",),
    DataFormat.CRITEO_MULTI_HOT: (".npy",),
    DataFormat.NPZ: (".npz",),
    DataFormat.PARQUET: (".parquet",),
    DataFormat.CSV: tuple(text + packed for text in (".csv", *_TEXT) for packed in ("", *COMPRESSED)),
}

_NAMED = (DataFormat.PARQUET, DataFormat.CSV, DataFormat.NPZ, DataFormat.CRITEO_BINARY)
"""Formats that the end of a name tells, the first that has it."""


def format_of(path: str, usual: DataFormat) -> DataFormat:
    """Return the format that the end of a name tells; the usual one where that has it too, or none does."""
    if path.lower().endswith(_SUFFIXES.get(usual, ())):
        return usual
    return next((each for each in _NAMED if path.lower().endswith(_SUFFIXES[each])), usual)


def open_source(
    data: Data,
    tables: TableSet,
    features: Sequence[Feature],
    *,
    num_dense: int,
    seed: int,
    root: Path,
    spare: Path,
    path: str | None = None,
    leave_out: str | None = None,
    setting: str = "spec.data.path",
    means: Mapping[str, float] | None = None,
    sessions: SyntheticSessions | None = None,
) -> SampleSource:
    """Return samples of a job.

    Args:
        data: says where they come from; a dataset of the user's own is none of them.
        tables: of the model.
        features: of all tables.
        num_dense: dense features of the model.
        seed: of synthetic samples.
        root: what relative paths start from.
        spare: folder for what cannot be written next to the data.
        path: what is read. None: ``data.path``.
        leave_out: names files among them that are not read.
        setting: name of the path in errors.
        means: that missing numbers are filled with, if ``data`` asks for means. None: those that ``spare`` keeps, or
            those of the files, which are kept there.
        sessions: that synthetic samples come in. If unset: in none.

    Raises:
        DataError: there are none, or they lack what the model needs.
        StorageError: there is no room for unpacked copies.
        MissingPackageError: the format needs a package.
    """
    if data.format is DataFormat.SYNTHETIC:
        count = data.num_samples or DEFAULT_NUM_SAMPLES
        return SyntheticSource(tables, features, num_dense=num_dense, num_samples=count, seed=seed, sessions=sessions)
    path = path or data.path
    assert path is not None, "the job was checked when it was read"
    if data.format is DataFormat.MOVIELENS_100K:
        return MovieLensSource(_movielens_place(path, root, setting), features, num_dense=num_dense)
    files = files_of(data, path, root, leave_out=leave_out, setting=setting)
    if data.format is DataFormat.CRITEO_TSV:
        _require_once([file.place for file in files], setting)
        return CriteoSource(files, features, num_dense=num_dense, spare=spare)
    if data.format in {DataFormat.CRITEO_BINARY, DataFormat.CRITEO_MULTI_HOT}:
        multi_hot = data.format is DataFormat.CRITEO_MULTI_HOT
        return CriteoBinarySource(files, features, num_dense=num_dense, multi_hot=multi_hot)
    if data.format is DataFormat.NPZ:
        return NpzSource(files, features, num_dense=num_dense, label=data.label_column or DEFAULT_LABEL_COLUMN)
    if data.format is DataFormat.CSV:
        _require_once([file.place for file in files], setting)
        source: CsvSource | ParquetSource = _csv_source(data, files, features, num_dense=num_dense, spare=spare)
    else:
        source = _parquet_source(data, files, features, num_dense=num_dense)
    if means is None:
        source.fill_with_means(spare)
    else:
        source.fill_with(means)
    return source


def files_of(
    data: Data, path: str, root: Path, *, leave_out: str | None = None, setting: str = "spec.data.path"
) -> Sequence[DataFile]:
    """Return the files of a job's format that a path names; for arguments and errors see open_source."""
    found = matching_files(path, root, suffixes=_SUFFIXES[data.format], setting=setting)
    others = () if leave_out is None else matching_files(leave_out, root, suffixes=_SUFFIXES[data.format])
    # An index, its lock, and what a writer of one left.
    files = [file for file in found if file not in others and INDEX_SUFFIX not in file.name]
    if not files:
        raise DataError(
            f"spec.data.path: {path} names no files but those of spec.data.evaluationPath; hint: name others"
        )
    return files


def require_readable(job: DLRMTrainingJob, tables: TableSet, *, root: Path) -> None:
    """Do nothing unless a job's files lack, or footers of Parquet or headers of CSV tell that it cannot train on them.

    Takes seconds, reads no rows but those that an error names, and writes nothing, also of files behind a URL. What
    files of other formats hold is checked where they are read.

    Raises:
        DataError: there are none, or they lack what the model needs.
        MissingPackageError: the format needs a package.
    """
    data = job.spec.data
    if data.format not in _SUFFIXES:
        return
    features, num_dense = features_of(tables.tables), job.spec.model.num_dense_features
    sources = []
    for path, setting in ((data.path, "spec.data.path"), (data.evaluation_path, "spec.data.evaluationPath")):
        if path is not None:
            files = files_of(data, path, root, setting=setting)
            if data.format is DataFormat.PARQUET:
                sources.append(_parquet_source(data, files, features, num_dense=num_dense))
            elif data.format is DataFormat.CSV:
                _require_headers(data, files, features, num_dense=num_dense)
    if len(sources) > 1:
        require_same_ids(*sources)


def _parquet_source(
    data: Data, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int
) -> "ParquetSource":
    try:
        from neuroshard_trainer.data.parquet import ParquetSource  # noqa: PLC0415 - needs pyarrow
    except ImportError as error:
        raise _no_pyarrow(data, error) from error
    return ParquetSource(
        files,
        features,
        label_column=data.label_column or DEFAULT_LABEL_COLUMN,
        dense_columns=dense_columns(data, num_dense),
        missing=data.missing or Missing.ERROR,
        session_column=data.session_column,
        time_column=data.time_column,
        constant=_constant_features(data, features),
    )


def require_same_ids(training: SampleSource, evaluation: SampleSource) -> None:
    """Do nothing if ids are of the same type in both data sets: equal ids look up equal rows. Raises DataError."""
    found, others = text_features(training), text_features(evaluation)
    for name in sorted(set(found) ^ set(others)):
        kinds = ("integers", "texts") if name in found else ("texts", "integers")
        raise DataError(
            f"spec.data.evaluationPath: column {name!r}: holds {kinds[0]}, in spec.data.path {kinds[1]}"
            "; hint: write both with the same types"
        )


def preprocessing_of(
    data: Data,
    features: Sequence[Feature],
    *,
    num_dense: int,
    means: Mapping[str, float] | None = None,
    texts: Collection[str] = (),
) -> Preprocessing:
    """Return the way from the raw data of a job to the inputs of its model, as the readers apply it; reads no data.

    Args:
        data: of the job.
        features: of the model.
        num_dense: dense features of the model.
        means: that the training filled missing numbers with. Needed where the job asks for means.
        texts: features whose ids are texts by the types of the data.

    Raises:
        DataError: spec.data names another number of dense columns than the model has.
    """
    match data.format:
        case DataFormat.CRITEO_TSV:
            return criteo.preprocessing(features)
        case DataFormat.CRITEO_BINARY | DataFormat.CRITEO_MULTI_HOT:
            return criteo_binary.preprocessing(features)
        case DataFormat.MOVIELENS_100K:
            return movielens.preprocessing(features)
        case DataFormat.PARQUET | DataFormat.CSV:
            missing = data.missing or Missing.ERROR
            return as_stored(
                features, data.format, dense_columns(data, num_dense), missing=missing, means=means, texts=texts
            )
        case DataFormat.NPZ | DataFormat.SYNTHETIC | DataFormat.DATASET:
            return as_stored(features, data.format, numbered(num_dense))


def _csv_source(
    data: Data, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int, spare: Path
) -> "CsvSource":
    try:
        from neuroshard_trainer.data.csv_source import CsvSource  # noqa: PLC0415 - needs pyarrow
    except ImportError as error:
        raise _no_pyarrow(data, error) from error
    return CsvSource(
        files,
        features,
        label_column=data.label_column or DEFAULT_LABEL_COLUMN,
        dense_columns=dense_columns(data, num_dense),
        missing=data.missing or Missing.ERROR,
        spare=spare,
        session_column=data.session_column,
        time_column=data.time_column,
        constant=_constant_features(data, features),
    )


def _require_headers(data: Data, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int) -> None:
    try:
        from neuroshard_trainer.data.csv_source import opened_header  # noqa: PLC0415 - needs pyarrow
    except ImportError as error:
        raise _no_pyarrow(data, error) from error
    aside = [name for name in (data.session_column, data.time_column) if name is not None]
    columns = (data.label_column or DEFAULT_LABEL_COLUMN, *dense_columns(data, num_dense), *aside)
    for file in files:
        if INDEX_SUFFIX not in file.name:
            opened_header(file, (*columns, *(feature.name for feature in features)))


def _no_pyarrow(data: Data, error: ImportError) -> MissingPackageError:
    return MissingPackageError(f"the format {data.format} needs pyarrow ({error}); hint: `pip install pyarrow`")


def _require_once(places: Sequence[str], setting: str) -> None:
    """Do nothing unless a file is there both plain and compressed. Raises DataError."""
    for place in places:
        both = next((place + suffix for suffix in COMPRESSED if place + suffix in places), None)
        if both is not None:
            raise DataError(f"{setting}: matches {place} and {both}, the same samples twice; hint: match one of them")


def _movielens_place(path: str, root: Path, setting: str) -> Path:
    """Return the wheel, or the folder that holds the data set's own files."""
    if (root / path).is_dir():
        folder = root / path
        wheels = sorted(folder.glob("recbole-*.whl"))
        return wheels[-1] if wheels and not (folder / "ml-100k.inter").exists() else folder
    return Path(matching_files(path, root, suffixes=(".whl",), setting=setting)[0].place)


def _constant_features(data: Data, features: Sequence[Feature]) -> Sequence[str]:
    known = [feature.name for feature in features]
    for index, name in enumerate(data.constant_in_session or ()):
        if name not in known:
            raise DataError(
                f"spec.data.constantInSession[{index}]: no table looks up {name!r} (found {', '.join(known)}); "
                "hint: name features of spec.model.embeddingTables"
            )
    return data.constant_in_session or ()


def dense_columns(data: Data, num_dense: int) -> Sequence[str]:
    """Return the names of the dense columns of a job. Raises DataError for another number than the model has."""
    if data.dense_columns is None:
        return numbered(num_dense)
    if len(data.dense_columns) != num_dense:
        raise DataError(
            f"spec.data.denseColumns: names {len(data.dense_columns)} columns, spec.model.numDenseFeatures is "
            f"{num_dense}; hint: make them equal"
        )
    return data.dense_columns
