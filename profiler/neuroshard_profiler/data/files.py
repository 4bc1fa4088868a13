"""Samples of training data as batches of ids: Criteo's formats, Parquet, CSV, NPZ. Judges no statistics."""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError
from neuroshard_costs.shards import IndexArray
from neuroshard_trainer.data.criteo_binary import DENSE_SUFFIX
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.unpack import COMPRESSED
from numpy.typing import NDArray

from neuroshard_profiler.data.batches import DataBatch, FeatureBatch, evenly
from neuroshard_profiler.data.columns import ChosenColumns, chosen_arrays, chosen_columns
from neuroshard_profiler.data.criteo_files import CriteoArrays, CriteoText
from neuroshard_profiler.data.csv_files import CsvFile
from neuroshard_profiler.data.numbers import SeenNumbers

if TYPE_CHECKING:
    import pyarrow as pa

ENDS: Mapping[DataFormat, tuple[str, ...]] = {
    DataFormat.CRITEO_TSV: tuple(text + packed for text in (".tsv", ".txt") for packed in ("", *COMPRESSED)),
    DataFormat.CRITEO_BINARY: (DENSE_SUFFIX,),
    DataFormat.CRITEO_MULTI_HOT: (DENSE_SUFFIX,),
    DataFormat.PARQUET: (".parquet",),
    DataFormat.CSV: tuple(text + packed for text in (".csv", ".tsv", ".txt") for packed in ("", *COMPRESSED)),
    DataFormat.NPZ: (".npz",),
}
"""Ends of the names of a format's files. The first format with an end is the one that a name tells."""
CRITEO_FORMATS = (DataFormat.CRITEO_TSV, DataFormat.CRITEO_BINARY, DataFormat.CRITEO_MULTI_HOT)
"""Formats whose columns have no names."""


class Reader(Protocol):
    """A file that is read batch by batch."""

    ids_are_rows: bool
    """Whether an id is the number of a row; otherwise ids are hashes, and rows are as many as there are ids."""

    @property
    def columns(self) -> ChosenColumns:
        """The columns that are looked up, and those that are passed over."""
        ...

    @property
    def num_dense(self) -> int:
        """Dense features of a sample."""
        ...

    @property
    def num_samples(self) -> int | None:
        """Number of samples in the file. None: unknown before it is read."""
        ...

    def not_a_number(self, name: str) -> str | None:
        """Return the type of a column that holds no numbers, and so can be no label. None: it holds numbers."""
        ...

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches of that many samples; the last may have fewer. Raises DataError.

        Args:
            num_samples: of a batch.
            numbers: takes labels and dense columns, too. None: they are not read.
        """
        ...


def open_data(
    place: str,
    *,
    data_format: DataFormat | None,
    features: Sequence[str],
    session: str | None,
    time: str | None = None,
    label: str | None = None,
    ignored: Sequence[str] = (),
    dense: Sequence[str] = (),
) -> Reader:
    """Return a reader.

    Args:
        place: the file's path, or a URL that fsspec knows; of Criteo's arrays the one that ends in ``_dense.npy``.
        data_format: None: by the end of the name.
        features: which features or columns are lookups. Empty: all that can be.
        session: name of the column that tells samples of one session. None: there is none.
        time: name of the column that orders samples, which is not a lookup. None: there is none.
        label: name of the column that is predicted, which is not a lookup. None: the job's default, if there is one.
        ignored: further columns that are not lookups.
        dense: dense features besides columns of numbers that are no ids.

    Raises:
        DataError: the format is not known, or does not have what is asked for.
        MissingPackageError: the URL or the format needs a package.
    """
    file = DataFile(place)
    if file.path is not None and not file.path.is_file():
        raise DataError(f"{place}: is not a file; hint: check the path")
    chosen = data_format or format_of(file)
    if chosen in CRITEO_FORMATS:
        _require_no_names(
            place,
            {"--session": session, "--time": time, "--feature": features, "--label": label}
            | {"--ignore": ignored, "--dense": dense},
        )
        if chosen is DataFormat.CRITEO_TSV:
            return CriteoText(file)
        return CriteoArrays(file, multi_hot=chosen is DataFormat.CRITEO_MULTI_HOT)
    if chosen is DataFormat.CSV:
        if time is not None:
            raise DataError(
                f"{place}: repeats over all samples are measured in Parquet alone"
                "; hint: leave --time out, or convert the data"
            )
        return CsvFile(file, features=features, session=session, label=label, ignored=ignored, dense=dense)
    if chosen is DataFormat.PARQUET:
        return ParquetFile(
            file, features=features, session=session, time=time, label=label, ignored=ignored, dense=dense
        )
    if time is not None:
        raise DataError(f"{place}: times are read from Parquet alone; hint: leave --time out, or convert the data")
    if dense:
        raise DataError(f"{place}: dense features of NPZ are the array 'dense'; hint: leave --dense out")
    return NpzFile(file, features=features, session=session, label=label, ignored=ignored)


def _require_no_names(place: str, asked: Mapping[str, object]) -> None:
    """Do nothing unless an option names a column of data that has none. Raises DataError."""
    given = [option for option, value in asked.items() if value]
    if given:
        raise DataError(
            f"{place}: Criteo's data has no named columns; hint: leave {' and '.join(given)} out, its columns are known"
        )


def format_of(file: DataFile) -> DataFormat:
    """Return the format that a file's name tells. Raises DataError where it tells none."""
    found = next((known for known, ends in ENDS.items() if file.name.lower().endswith(ends)), None)
    if found is None:
        raise DataError(f"{file}: its name tells no format; hint: give --format, one of {', '.join(ENDS)}")
    return found


def limited(batches: Iterable[DataBatch], max_samples: int | None) -> Iterator[DataBatch]:
    """Yield the batches up to that many samples; one that would exceed them is left out, but for the first."""
    total = 0
    for batch in batches:
        total += batch.num_samples
        if total > batch.num_samples and max_samples is not None and total > max_samples:
            return
        yield batch


class ParquetFile:
    """Columns of integers, texts, or lists of either; a null looks nothing up. Other columns are passed over."""

    ids_are_rows = True

    def __init__(
        self,
        path: DataFile,
        *,
        features: Sequence[str],
        session: str | None,
        time: str | None,
        label: str | None,
        ignored: Sequence[str],
        dense: Sequence[str],
    ) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read
        from neuroshard_trainer.data.distinct_lists import distinct_columns, schema_of  # noqa: PLC0415 - needs pyarrow
        from neuroshard_trainer.data.id_columns import holds_ids, id_type, is_text  # noqa: PLC0415 - the same
        from neuroshard_trainer.data.parquet import is_number, one_line  # noqa: PLC0415 - the same
        from neuroshard_trainer.data.parquet_statistics import repeated_texts  # noqa: PLC0415 - the same
        from neuroshard_trainer.data.session_columns import is_session  # noqa: PLC0415 - the same
        from pyarrow import parquet  # noqa: PLC0415 - the same

        self._path = path
        try:
            metadata = parquet.read_metadata(path.path or path.open())
            stored = metadata.schema.to_arrow_schema()
            self._distinct, names = distinct_columns(stored), schema_of(metadata).names
            encoded = repeated_texts(metadata, [name for name in names if names.count(name) == 1]).values()
            self._file = parquet.ParquetFile(path.path or path.open(), metadata=metadata, read_dictionary=list(encoded))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: is not a Parquet file that can be read ({one_line(error)})"
                "; hint: write it again, check the path, or give --format"
            ) from error
        schema = pa.schema([field.with_name(name) for field, name in zip(self._file.schema_arrow, names, strict=True)])
        self.columns = chosen_columns(
            {each.name: str(each.type) for each in schema},
            [each.name for each in schema if holds_ids(each.type)],
            features=features,
            label=label,
            session=session,
            time=time,
            ignored=ignored,
            where=str(path),
            numbers=[each.name for each in schema if is_number(each.type) and not holds_ids(each.type)],
            dense=dense,
        )
        named = [name for name in (session, self.columns.label) if name is not None]
        for name in (*self.columns.features, *self.columns.dense, *named):
            if schema.names.count(name) > 1:
                or_ignore = "" if name in named else f", or give --ignore {name}"
                raise DataError(
                    f"{path}, column {name}: is there {schema.names.count(name)} times; hint: rename one{or_ignore}"
                )
        if session is not None and not is_session(schema.field(session).type):
            raise DataError(
                f"{path}: column {session!r}: holds {metadata.schema.to_arrow_schema().field(session).type}"
                "; hint: a session is an integer or a text"
            )
        self._session = session
        self._time = time
        self.floating = frozenset(each.name for each in schema if pa.types.is_floating(each.type))
        """Columns of floating-point numbers."""
        self.texts = frozenset(name for name in self.columns.features if is_text(id_type(schema.field(name).type)))
        """Features whose ids are texts."""
        self.has_text_sessions = session is not None and not pa.types.is_integer(id_type(schema.field(session).type))

    def not_a_number(self, name: str) -> str | None:
        """Return the type of a column that holds no numbers. None: it holds numbers."""
        from neuroshard_trainer.data.parquet import is_number  # noqa: PLC0415 - needs pyarrow

        schema = self._file.metadata.schema.to_arrow_schema()  # without the dictionaries that texts are read as
        kind = schema.field(name).type
        return None if is_number(kind) else str(kind)

    def require_same(self, other: "ParquetFile") -> None:
        """Do nothing if another file of the data set has ids of the same kind. Raises DataError."""
        sessions = set() if self._session is None else {self._session}
        texts = self.texts | (sessions if self.has_text_sessions else set())
        others = other.texts | (sessions if other.has_text_sessions else set())
        for name in sorted(texts ^ others):
            kinds = ("texts", "integers") if name in others else ("integers", "texts")
            raise DataError(
                f"{other._path}: column {name!r}: holds {kinds[0]}, in {self._path} {kinds[1]}"  # noqa: SLF001 - one of them
                "; hint: write both files with the same types"
            )

    @property
    def num_samples(self) -> int:
        """Number of rows of the file."""
        return int(self._file.metadata.num_rows)

    @property
    def num_dense(self) -> int:
        """Number of dense columns."""
        return len(self.columns.dense)

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError with the column."""
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read

        read = () if numbers is None else numbers.names
        columns = dict.fromkeys((*self.columns.features, *([self._session] if self._session else []), *read))
        first = 0
        for batch in self._read(num_samples, tuple(columns)):
            if numbers is not None:
                found = {name: batch.column(name).cast(pa.float64(), safe=False) for name in read}
                arrays = {name: column.to_numpy(zero_copy_only=False) for name, column in found.items()}
                numbers.take(arrays, self._places(first))
            first += batch.num_rows
            yield DataBatch(
                num_samples=batch.num_rows,
                features={name: self._ids(name, batch.column(name)) for name in self.columns.features},
                sessions=None if self._session is None else self._sessions(batch.column(self._session)),
            )

    def _places(self, first: int) -> Callable[[int], str]:
        """Return the names of rows, counted from a first one on."""
        return lambda row: f"{self._path} row {first + row}"

    def _read(self, num_samples: int, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read
        from neuroshard_trainer.data.distinct_lists import SUFFIX, with_repeats  # noqa: PLC0415 - needs pyarrow
        from neuroshard_trainer.data.parquet import one_line  # noqa: PLC0415 - the same

        shared = [name for name in columns if name in self._distinct]
        stored = [f"{name}{SUFFIX}" if name in shared else name for name in columns]
        try:
            for group in range(self._file.num_row_groups):  # Arrow joins no dictionaries in lists of several groups
                if shared:
                    rows = with_repeats(self._file.read_row_group(group, columns=stored), shared)
                    yield from rows.to_batches(num_samples)
                    continue
                yield from self._file.iter_batches(num_samples, row_groups=[group], columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self._path}: cannot be read ({one_line(error)}); hint: write the damaged file again"
            ) from error

    def _sessions(self, column: "pa.Array") -> IndexArray:
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read
        from neuroshard_trainer.data.session_columns import session_ids  # noqa: PLC0415 - needs pyarrow

        if column.null_count:
            raise DataError(
                f"{self._path}: column {self._session!r}: is null in {column.null_count:,} rows"
                "; hint: leave these rows out, or give them a value"
            )
        return session_ids(pa.chunked_array([column]))

    def _ids(self, name: str, column: "pa.Array") -> FeatureBatch:
        from neuroshard_trainer.data.id_columns import IdColumn  # noqa: PLC0415 - needs pyarrow

        found = IdColumn.of(column)
        return FeatureBatch(lengths=found.lengths, ids=found.identities(), are_texts=name in self.texts)


class NpzFile:
    """Arrays ``<feature>.values`` with all ids and ``<feature>.lengths`` with the number of each sample's."""

    ids_are_rows = True

    def __init__(
        self,
        path: DataFile,
        *,
        features: Sequence[str],
        session: str | None,
        label: str | None,
        ignored: Sequence[str],
    ) -> None:
        try:
            with path.open() as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not an NPZ file of plain arrays; hint: write it with numpy.savez") from error
        self.columns = chosen_arrays(
            {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()},
            features=features,
            label=label,
            session=session,
            ignored=ignored,
            where=str(path),
        )
        lookups = {name: self._jagged(path, name, arrays) for name in self.columns.features}
        self._path, self._arrays = path, arrays
        sessions = None if session is None else _integers(path, session, arrays)
        counts = {name: len(feature.lengths) for name, feature in lookups.items()}
        if sessions is not None:
            counts[str(session)] = len(sessions)
        if len(set(counts.values())) > 1:
            raise DataError(
                f"{path}: its arrays differ in their number of samples: {counts}"
                "; hint: write one length, and one session, for each sample"
            )
        self._samples = DataBatch(num_samples=next(iter(counts.values())), features=lookups, sessions=sessions)

    @property
    def num_samples(self) -> int:
        """Number of samples of the arrays."""
        return self._samples.num_samples

    @property
    def num_dense(self) -> int:
        """Columns of the array of dense features, 0 without it. Raises DataError where it has another shape."""
        return int(self._dense.shape[1])

    @property
    def _dense(self) -> NDArray[np.float64]:
        """[samples, dense features] Raises DataError where it has another shape."""
        if _DENSE not in self._arrays:
            return np.empty((self.num_samples, 0))
        return self._numbers(_DENSE, num_dimensions=2)

    def not_a_number(self, name: str) -> None:
        """Return None: arrays of other values are refused where they are read."""

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError for labels or dense features that training would refuse."""
        if numbers is not None:
            columns = dict(zip(numbers.dense, self._dense.T, strict=True))
            if numbers.label is not None:
                columns[numbers.label] = self._numbers(numbers.label, num_dimensions=1)
            numbers.take(columns, lambda row: f"{self._path} sample {row}")
        yield from evenly([self._samples], num_samples)

    def _numbers(self, name: str, *, num_dimensions: int) -> NDArray[np.float64]:
        """Return an array of numbers for each sample. Raises DataError."""
        if name not in self._arrays:
            known = ", ".join(sorted(self._arrays))
            raise DataError(f"{self._path}: the array {name!r} is missing; it has {known}; hint: add it")
        array = self._arrays[name]
        wanted = "[samples]" if num_dimensions == 1 else "[samples, columns]"
        is_number = np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_
        if not is_number or array.ndim != num_dimensions or len(array) != self._samples.num_samples:
            raise DataError(
                f"{self._path}: {name}: is {array.dtype}{list(array.shape)}, expected numbers {wanted}, for "
                f"{self._samples.num_samples} samples; hint: write it so, for instance with astype(numpy.float32)"
            )
        numbers: NDArray[np.float64] = array.astype(np.float64)
        return numbers

    @staticmethod
    def _jagged(path: DataFile, name: str, arrays: Mapping[str, np.ndarray]) -> FeatureBatch:
        lengths, ids = (_integers(path, f"{name}.{part}", arrays) for part in ("lengths", "values"))
        if (lengths < 0).any() or lengths.sum() != len(ids):
            raise DataError(
                f"{path}: {name}.lengths: sum to {lengths.sum()}, {name}.values holds {len(ids)} ids"
                "; hint: write the number of each sample's ids as its length"
            )
        return FeatureBatch(lengths=lengths, ids=ids)


_DENSE = "dense"
"""Array of dense features in an NPZ file."""


def _integers(path: DataFile, name: str, arrays: Mapping[str, np.ndarray]) -> IndexArray:
    if name not in arrays:
        raise DataError(f"{path}: the array {name!r} is missing; it has {', '.join(sorted(arrays))}; hint: add it")
    array = arrays[name]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{path}: {name}: is {array.dtype}{list(array.shape)}, expected one row of integers"
            "; hint: convert it, for instance with astype(numpy.int64)"
        )
    return array.astype(np.int64)
