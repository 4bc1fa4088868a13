"""Samples of training data as batches of ids: Criteo TSV, Parquet, NPZ. Reads files, judges no statistics.

Every feature of a batch is jagged: how many ids each sample has, and all ids one after the other.
"""

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from neuroshard_costs.shards import IndexArray
from neuroshard_trainer.data.criteo_lines import FEATURES, LineError, parse_lines

from neuroshard_profiler.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["criteo", "parquet", "npz"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {".tsv": "criteo", ".txt": "criteo", ".parquet": "parquet", ".npz": "npz"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Jagged:
    """One feature of a batch."""

    lengths: IndexArray
    """[samples]"""
    ids: IndexArray
    """[sum of lengths]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataBatch:
    """Consecutive samples."""

    num_samples: int
    features: Mapping[str, Jagged]
    sessions: IndexArray | None
    """[samples] a number for each session. None: the data names none."""


class DataFile(Protocol):
    """A file that is read batch by batch."""

    ids_are_rows: bool
    """Whether an id is the number of a row; otherwise ids are hashes, and rows are as many as there are ids."""

    def batches(self, num_samples: int) -> Iterator[DataBatch]:
        """Yield batches of so many samples; the last may have fewer. Raises DataError."""
        ...


def open_data(path: Path, *, data_format: Format | None, features: Sequence[str], session: str | None) -> DataFile:
    """Return a reader.

    Args:
        path: the file.
        data_format: None: by the suffix.
        features: which features or columns are lookups. Empty: all that can be.
        session: name of the column that tells samples of one session. None: there is none.

    Raises:
        DataError: the format is not known, or does not have what is asked for.
    """
    if not path.is_file():
        raise DataError(f"{path}: is no file; check the path")
    chosen = data_format or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise DataError(f"{path}: its suffix {path.suffix!r} names no format; give one of {', '.join(FORMATS)}")
    if chosen == "criteo":
        if session is not None or features:
            raise DataError(f"{path}: a Criteo file has no named columns; leave session and features out")
        return CriteoFile(path)
    return (ParquetFile if chosen == "parquet" else NpzFile)(path, features=features, session=session)


def limited(batches: Iterable[DataBatch], max_samples: int | None) -> Iterator[DataBatch]:
    """Yield the batches up to so many samples; one that would exceed them is left out, but for the first."""
    total = 0
    for batch in batches:
        total += batch.num_samples
        if total > batch.num_samples and max_samples is not None and total > max_samples:
            return
        yield batch


class CriteoFile:
    """Criteo's text format by the trainer's own parser: an empty cell looks nothing up."""

    ids_are_rows = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(self, num_samples: int) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError with line and column."""
        first_line = 1
        with self._path.open("rb") as stream:
            while lines := list(islice(stream, num_samples)):
                try:
                    parsed = parse_lines(b"".join(lines))
                except LineError as error:
                    raise DataError(f"{self._path} line {first_line + error.row}: {error}") from error
                yield DataBatch(
                    num_samples=len(lines),
                    features={
                        name: Jagged(
                            lengths=present.astype(np.int64),
                            ids=hashes[present].view(np.int64),  # told apart, not looked up: the sign says nothing
                        )
                        for name, hashes, present in zip(FEATURES, parsed.hashes, parsed.present, strict=True)
                    },
                    sessions=None,
                )
                first_line += len(lines)


class ParquetFile:
    """Columns of integers (one id each) or of lists of integers; other columns are passed over."""

    ids_are_rows = True

    def __init__(self, path: Path, *, features: Sequence[str], session: str | None) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read
        from pyarrow import parquet  # noqa: PLC0415 - the same

        self._path = path
        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is not a Parquet file: {error}") from error
        schema = self._file.schema_arrow
        for name in (*features, *([session] if session else [])):
            if name not in schema.names:
                raise DataError(f"{path}: column {name!r}: is not there; the columns are {', '.join(schema.names)}")
        wanted = features or [name for name in schema.names if name != session and _holds_ids(schema.field(name).type)]
        for name in wanted:
            if not _holds_ids(schema.field(name).type):
                raise DataError(
                    f"{path}: column {name!r}: holds {schema.field(name).type}, expected integers or lists of integers"
                )
        if not wanted:
            raise DataError(f"{path}: has no column of integers or of lists of integers; its schema is {schema.names}")
        self._features, self._session = wanted, session

    def batches(self, num_samples: int) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError with the column."""
        columns = [*self._features, *([self._session] if self._session else [])]
        for batch in self._file.iter_batches(batch_size=num_samples, columns=columns):
            yield DataBatch(
                num_samples=batch.num_rows,
                features={name: self._jagged(name, batch.column(name)) for name in self._features},
                sessions=None if self._session is None else _numbered(batch.column(self._session).to_pylist()),
            )

    def _jagged(self, name: str, column: "pa.Array") -> Jagged:
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read

        if pa.types.is_integer(column.type):
            lengths = np.asarray(column.is_valid()).astype(np.int64)
            ids = column.drop_null()
        else:
            lengths = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
            ids = column.flatten()
        if ids.null_count:
            raise DataError(f"{self._path}: column {name!r}: has lists with empty entries; remove them")
        return _checked(Jagged(lengths=lengths, ids=np.asarray(ids, dtype=np.int64)), f"{self._path}: column {name!r}")


class NpzFile:
    """Arrays ``<feature>.values`` with all ids and ``<feature>.lengths`` with the number of each sample's."""

    ids_are_rows = True

    def __init__(self, path: Path, *, features: Sequence[str], session: str | None) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not an NPZ file of plain arrays: {error}") from error
        names = features or sorted(name.removesuffix(".values") for name in arrays if name.endswith(".values"))
        if not names:
            raise DataError(f"{path}: has no array <feature>.values; it has {', '.join(sorted(arrays)) or 'none'}")
        self._features = {name: self._jagged(path, name, arrays) for name in names}
        self._sessions = None if session is None else _numbered(_integers(path, session, arrays).tolist())
        counts = {name: len(feature.lengths) for name, feature in self._features.items()}
        if self._sessions is not None:
            counts[str(session)] = len(self._sessions)
        if len(set(counts.values())) > 1:
            raise DataError(f"{path}: its arrays differ in their number of samples: {counts}")
        self._num_samples = next(iter(counts.values()))

    def batches(self, num_samples: int) -> Iterator[DataBatch]:
        """Yield batches."""
        for start in range(0, self._num_samples, num_samples):
            part = slice(start, start + num_samples)
            yield DataBatch(
                num_samples=min(num_samples, self._num_samples - start),
                features={name: _part(feature, part) for name, feature in self._features.items()},
                sessions=None if self._sessions is None else self._sessions[part],
            )

    @staticmethod
    def _jagged(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> Jagged:
        lengths, ids = (_integers(path, f"{name}.{part}", arrays) for part in ("lengths", "values"))
        if (lengths < 0).any() or lengths.sum() != len(ids):
            raise DataError(f"{path}: {name}.lengths: sum to {lengths.sum()}, {name}.values holds {len(ids)} ids")
        return _checked(Jagged(lengths=lengths, ids=ids), f"{path}: {name}.values")


def _integers(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> IndexArray:
    if name not in arrays:
        raise DataError(f"{path}: the array {name!r} is missing; it has {', '.join(sorted(arrays))}")
    array = arrays[name]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{path}: {name}: is {array.dtype}{list(array.shape)}, expected one row of integers")
    return array.astype(np.int64)


def _checked(feature: Jagged, where: str) -> Jagged:
    if len(feature.ids) and feature.ids.min() < 0:
        place = int(np.argmin(feature.ids))
        raise DataError(f"{where}: entry {place} is {feature.ids[place]}, ids must not be negative")
    return feature


def _part(feature: Jagged, part: slice) -> Jagged:
    ends = np.concatenate(([0], np.cumsum(feature.lengths)))
    first, last, _ = part.indices(len(feature.lengths))
    return Jagged(lengths=feature.lengths[part], ids=feature.ids[ends[first] : ends[last]])


def _holds_ids(kind: "pa.DataType") -> bool:
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return bool(pa.types.is_integer(kind.value_type))
    return bool(pa.types.is_integer(kind))


def _numbered(values: Sequence[Any]) -> IndexArray:
    """Return a number for each distinct value."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
