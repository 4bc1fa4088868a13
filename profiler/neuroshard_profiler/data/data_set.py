"""Files of one data set, read as one: a file, a folder, a glob pattern, or a URL. Judges no statistics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuroshard_api.job.training import WITH_NAMED_COLUMNS, DataFormat
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.files import DataFile, matching_files

from neuroshard_profiler.data.batches import DataBatch, evenly
from neuroshard_profiler.data.columns import ChosenColumns
from neuroshard_profiler.data.csv_files import CsvFile
from neuroshard_profiler.data.files import CRITEO_FORMATS, ENDS, ParquetFile, Reader, format_of, open_data
from neuroshard_profiler.data.numbers import SeenNumbers
from neuroshard_profiler.data.statistics import DataStatistics


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """Files of one format, in the order of their names; a batch may take samples of two. One is open at a time."""

    files: tuple[DataFile, ...]
    data_format: DataFormat
    session: str | None
    time: str | None
    label: str | None
    num_samples: int | None
    """Number of samples of all files. None: unknown before they are read."""
    _first: Reader
    """Of the first file."""

    @classmethod
    def of(
        cls,
        place: str,
        *,
        data_format: DataFormat | None,
        features: Sequence[str],
        session: str | None,
        time: str | None,
        label: str | None = None,
        ignored: Sequence[str] = (),
        dense: Sequence[str] = (),
        setting: str = "DATA",
    ) -> "DataSet":
        """Find the files, as training does, open the first, and compare the columns of all Parquet files with it.

        For arguments and errors see open_data; ``setting`` is what errors call the place.
        """
        files = _files(place, data_format, setting)
        formats = {data_format} if data_format else {format_of(file) for file in files}
        if len(formats) > 1:
            raise DataError(
                f"{place}: holds files of several formats ({', '.join(sorted(map(str, formats)))})"
                "; hint: give --format, or a pattern such as 'day_*.tsv'"
            )
        chosen = next(iter(formats))
        opened = open_data(
            files[0].place,
            data_format=chosen,
            features=features,
            session=session,
            time=time,
            label=label,
            ignored=ignored,
            dense=dense,
        )
        num_samples = opened.num_samples if len(files) == 1 else None
        if isinstance(opened, ParquetFile):
            num_samples = opened.num_samples
            for file in files[1:]:
                other = ParquetFile(
                    file,
                    features=opened.columns.features,
                    session=session,
                    time=time,
                    label=label,
                    ignored=(),
                    dense=(),
                )
                opened.require_same(other)
                num_samples += other.num_samples
        return cls(
            files=files,
            data_format=chosen,
            session=session,
            time=time,
            label=label,
            num_samples=num_samples,
            _first=opened,
        )

    @property
    def columns(self) -> ChosenColumns:
        """The columns of the first file that are looked up in all, and those that are passed over."""
        return self._first.columns

    @property
    def has_names(self) -> bool:
        """Whether columns are read by their names; those of Criteo's formats are read by their places."""
        return self.data_format not in CRITEO_FORMATS

    def seen_numbers(self, *, refuses: bool) -> SeenNumbers:
        """Return a count of labels and dense features of which nothing was read.

        Args:
            refuses: whether what training would refuse is an error. If not, columns of other values are left out.
        """
        label, dense = self.columns.label, self.columns.dense
        if self.data_format in _WITH_DENSE_ARRAY:
            dense = tuple(f"dense feature {index}" for index in range(self.num_dense))
        if not refuses:
            label = None if label is None or self._first.not_a_number(label) is not None else label
            dense = tuple(name for name in dense if self._first.not_a_number(name) is None)
        may_miss = self.data_format in WITH_NAMED_COLUMNS
        return SeenNumbers(label=label, dense=dense, may_miss=may_miss, refuses=refuses)

    def notes(self, numbers: SeenNumbers) -> Iterator[str]:
        """Yield sentences on columns that are not looked up: those passed over, and what training would refuse.

        Args:
            numbers: of the samples that were read.
        """
        if self.columns.passed_over:
            yield f"passed over: {self.columns.passed_over_text}"
        label = self.columns.label
        if label is not None and (kind := self._first.not_a_number(label)) is not None:
            yield f"{label}: holds {kind}, and training reads 0 and 1; hint: write it as numbers"
        for column, count in sorted(numbers.num_missing.items()):
            remedy = "set spec.data.missing" if column != label and numbers.may_miss else "fill it in or drop them"
            yield f"{column}: is missing in {count:,} of {numbers.num_samples:,} samples; hint: {remedy}"

    def doubts(self, statistics: DataStatistics, numbers: SeenNumbers) -> tuple[str, ...]:
        """Return questions to the user of the data: on columns whose values are unlike their use."""
        cells = self._first.doubts if isinstance(self._first, CsvFile) else {}
        ids = [cells.get(each.name) or each.doubt for each in statistics.features]
        floating = self._first.floating if isinstance(self._first, ParquetFile) else ()
        dense = [
            f"{name}: holds fractions by its type, and all values are whole numbers; is it a column of ids next to "
            "nulls, as pandas stores them? write it as integers, such as pandas' Int64"
            for name in self.columns.dense
            if name in floating and name in numbers.columns and numbers.columns[name].are_like_ids
        ]
        return tuple(each for each in (*ids, *dense) if each is not None)

    @property
    def ids_are_rows(self) -> bool:
        """Whether an id is the number of a row; otherwise ids are hashes."""
        return self._first.ids_are_rows

    @property
    def num_dense(self) -> int:
        """Dense features of a sample. Raises DataError where those of an archive have another shape."""
        return self._first.num_dense

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches of that many samples; the last may have fewer. For arguments and errors see Reader."""
        yield from evenly(self._of_files(num_samples, numbers), num_samples)

    def _of_files(self, num_samples: int, numbers: SeenNumbers | None) -> Iterator[DataBatch]:
        reader, features = self._first, self.columns.features if self.has_names else ()
        for number, file in enumerate(self.files):
            if number:
                reader = open_data(
                    file.place,
                    data_format=self.data_format,
                    features=features,
                    session=self.session,
                    time=self.time,
                    label=self.label,
                )
            yield from reader.batches(num_samples, numbers)


_WITH_DENSE_ARRAY = (DataFormat.CRITEO_BINARY, DataFormat.CRITEO_MULTI_HOT, DataFormat.NPZ)
"""Formats whose dense features are one array, so that they have no names."""


def _files(place: str, data_format: DataFormat | None, setting: str) -> tuple[DataFile, ...]:
    formats = (data_format,) if data_format else tuple(ENDS)
    suffixes = tuple(dict.fromkeys(end for each in formats for end in ENDS[each]))
    return matching_files(place, Path(), suffixes=suffixes, setting=setting)
