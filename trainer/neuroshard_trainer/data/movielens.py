"""MovieLens-100K as RecBole packs it: from the wheel itself (a zip file), or from a folder with the same files.

A sample is one rating; its label is 1 for four stars or more. Lookups are numbered from 0 on in the order in which
values first occur in the data set's own files of users and movies, so that a table needs as many rows as there are
values. Dense features: the user's age, and the time of the rating, both scaled to about 0 to 1.
"""

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from neuroshard_api.documents.preprocessing import DensePreprocessing, Missing, Preprocessing, Transformation
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.preprocessing import dense_features, lookups_of
from neuroshard_trainer.data.samples import Feature, IndexArray, Jagged, Samples
from neuroshard_trainer.data.source import BLOCK_SAMPLES, require_features

FEATURES = ("user_id", "age", "gender", "occupation", "zip_code", "item_id", "release_year", "genre", "title_word")
"""Features there are; genre and title_word have several lookups per sample."""
NUM_DENSE = 2
MIN_LIKED_RATING = 4.0
_FOLDER = "recbole/dataset_example/ml-100k"
_USER_COLUMNS = {
    "age": "age:token",
    "gender": "gender:token",
    "occupation": "occupation:token",
    "zip_code": "zip_code:token",
}
_ITEM_COLUMNS = {
    "release_year": "release_year:token",
    "genre": "class:token_seq",
    "title_word": "movie_title:token_seq",
}
_FIRST_RATING_SECONDS = 874_724_710.0
"""Time of the data set's first rating, from 1970 on."""
_SECONDS_PER_YEAR = 31_557_600.0
_DENSE = (("age_in_years", 0.0, 100.0), ("timestamp", _FIRST_RATING_SECONDS, _SECONDS_PER_YEAR))
Row = Mapping[str, str]


def preprocessing(features: Sequence[Feature]) -> Preprocessing:
    """Return the way from the data set's values to a model's inputs."""
    return Preprocessing(
        dense=tuple(
            DensePreprocessing(
                name=name, missing=Missing.ERROR, transformation=Transformation.LINEAR, offset=offset, divisor=divisor
            )
            for name, offset, divisor in _DENSE
        ),
        lookups=lookups_of(features, DataFormat.MOVIELENS_100K, numbered_by="ml-100k.user, ml-100k.item"),
    )


class MovieLensSource:
    """The whole data set in memory: 100,000 samples."""

    def __init__(self, path: Path, features: Sequence[Feature], *, num_dense: int) -> None:
        require_features(features, FEATURES, where=str(path))
        if num_dense != NUM_DENSE:
            raise DataError(
                f"spec.model.numDenseFeatures: is {num_dense}, MovieLens-100K has {NUM_DENSE}; hint: set that"
            )
        users = _read(path, "ml-100k.user")
        items = _read(path, "ml-100k.item")
        ratings = _read(path, "ml-100k.inter")
        self._file = f"{path}: ml-100k.inter"
        user_at = _positions(users, "user_id:token", f"{path}: ml-100k.user")
        item_at = _positions(items, "item_id:token", f"{path}: ml-100k.item")
        user = self._known(ratings, "user_id:token", user_at)
        item = self._known(ratings, "item_id:token", item_at)
        liked = self._numbers(ratings, "rating:float") >= MIN_LIKED_RATING
        times = self._numbers(ratings, "timestamp:float")
        ages = np.array([float(row["age:token"]) for row in users])
        dense = dense_features(np.stack((ages[user], times), axis=1), preprocessing(features).dense)
        lookups: dict[str, Jagged] = {}
        for feature in features:
            if feature.name == "user_id":
                lookups[feature.name] = Jagged.single(user)
            elif feature.name == "item_id":
                lookups[feature.name] = Jagged.single(item)
            elif feature.name in _USER_COLUMNS:
                lookups[feature.name] = _words(users, _USER_COLUMNS[feature.name]).take(user)
            else:
                lookups[feature.name] = _words(items, _ITEM_COLUMNS[feature.name]).take(item)
        self._samples = Samples(labels=liked.astype(np.float32), dense=dense, lookups=lookups)
        starts = range(0, len(ratings), BLOCK_SAMPLES)
        self.block_sizes = tuple(min(BLOCK_SAMPLES, len(ratings) - start) for start in starts)

    def take(self, block: int, rows: IndexArray) -> Samples:
        """Return some samples of a block, in this order."""
        return self._samples.take(rows + block * BLOCK_SAMPLES)

    def place(self, block: int, row: int) -> str:
        """Return the line of the rating; line 1 is the header."""
        return f"{self._file} line {block * BLOCK_SAMPLES + row + 2}"

    def _known(self, ratings: Sequence[Row], column: str, position: Mapping[str, int]) -> IndexArray:
        try:
            return np.array([position[row[column]] for row in ratings], dtype=np.int64)
        except KeyError as error:
            line = next(number for number, row in enumerate(ratings, start=2) if row[column] not in position)
            raise DataError(
                f"{self._file} line {line}: {column} {error} is not in the data set; hint: get it again"
            ) from error

    def _numbers(self, ratings: Sequence[Row], column: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array([_number(row[column], self._file, line) for line, row in enumerate(ratings, start=2)])


def _read(path: Path, name: str) -> list[Row]:
    """Return the rows of one of the data set's files, which are tab-separated with a header."""
    where = f"{path}: {name}"
    try:
        if path.is_dir():
            text = (path / name).read_text(encoding="utf-8")
        else:
            with zipfile.ZipFile(path) as wheel:
                text = wheel.read(f"{_FOLDER}/{name}").decode()
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DataError(
            f"{where}: cannot be read ({error})"
            f"; hint: give the wheel of recbole 1.2.1 (`pip download --no-deps recbole`) "
            "or a folder with its files"
        ) from error
    rows: list[Row] = list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{where} line {line}: has not as many columns as the header; hint: get the file again")
    if not rows:
        raise DataError(f"{where}: has no rows; hint: get the file again")
    return rows


def _number(text: str, where: str, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where} line {line}: {text!r} is not a number; hint: get the file again") from error


def _positions(rows: Sequence[Row], column: str, where: str) -> dict[str, int]:
    if column not in rows[0]:
        raise DataError(f"{where}: has no column {column}; hint: give the data set as RecBole packs it")
    return {row[column]: position for position, row in enumerate(rows)}


def _words(rows: Sequence[Row], column: str) -> Jagged:
    """Return the words of a column as lookups, one or more of each row, numbered as they first appear."""
    numbers: dict[str, int] = {}
    words = [row[column].split() for row in rows]
    values = [numbers.setdefault(word, len(numbers)) for each in words for word in each]
    return Jagged.of_lengths(np.array(values, dtype=np.int64), np.array([len(each) for each in words], dtype=np.int64))
