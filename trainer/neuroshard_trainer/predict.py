"""From raw rows to the logits of a trained model: ``python predict.py ROWS.jsonl`` in the folder of an export.

    raw rows --preprocessing of model.json--> dense features, table rows --model.pt or quantized.pt--> logits

An export has a copy of this file. The readers of the training data call the same functions with the same arguments, so
that a formula exists once. It needs NumPy, torch, TorchRec, and FBGEMM, and xxhash where ids are texts. With
``model.pt`` it needs the package neuroshard_trainer too, which builds the model; with ``quantized.pt`` nothing else of
NeuroShard.

    from predict import Predictor

    predictor = Predictor(".")
    predictor.logits({"int_0": [1, None], ..., "cat_0": ["68fd1e64", None], ...})
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEXADECIMAL_DIGITS = 16
"""Maximum digits of an id in hexadecimal form."""
ROWS_AT_A_TIME = 4096
SCHEMA = "exported-model/v2"
"""Of the ``model.json`` that this file reads."""
_LARGEST = np.uint64(2**63 - 1)
# Of xxh64, whose steps for an integer, which is one lane of 8 bytes, are below for whole arrays.
PRIMES = tuple(
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def transformed(
    numbers: NDArray[Any], transformation: str, *, offset: float | None = None, divisor: float | None = None
) -> NDArray[np.float32]:
    """Return dense features of numbers without missing ones, in any shape.

    Args:
        numbers: floats.
        transformation: Identity, Log1p, or Linear.
        offset: of Linear.
        divisor: of Linear.
    """
    if transformation == "Identity":
        return numbers.astype(np.float32, copy=False)
    if transformation == "Log1p":
        logarithms: NDArray[np.float32] = np.log1p(np.maximum(numbers.astype(np.float32, copy=False), 0))
        return logarithms
    if transformation == "Linear":
        assert offset is not None
        assert divisor is not None
        return ((numbers.astype(np.float64, copy=False) - offset) / divisor).astype(np.float32)
    raise ValueError(f"transformation: must be Identity, Log1p, or Linear (found {transformation!r})")


def table_rows(ids: NDArray[Any], id_rule: str, num_rows: int) -> NDArray[np.int64]:
    """Return the table row of each integer; of the rule Exact it may be outside the table, which the caller refuses.

    Args:
        ids: integers of any type.
        id_rule: Exact, Modulo, or Hash.
        num_rows: rows of the table.
    """
    if id_rule == "Exact":
        return (np.minimum(ids, _LARGEST) if ids.dtype == np.uint64 else ids).astype(np.int64)
    if id_rule == "Modulo":
        return _remainders(ids if ids.dtype == np.uint64 else ids.astype(np.int64, copy=False), num_rows)
    if id_rule == "Hash":
        return hash_rows(integer_hashes(ids), num_rows)
    raise ValueError(f"id_rule: must be Exact, Modulo, or Hash (found {id_rule!r})")


def hash_rows(hashes: NDArray[np.uint64], num_rows: int) -> NDArray[np.int64]:
    """Return the table row of each hash, of the rule Hash."""
    return _remainders(hashes, num_rows)


def integer_hashes(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Return xxh64 with seed 0 of the 8 bytes of each integer, in little-endian order and two's complement."""
    words: NDArray[np.uint64] = ids.astype(np.uint64)
    return finished_hashes(with_lane(begun_hashes(8, len(words)), words))


def begun_hashes(length: int, count: int) -> NDArray[np.uint64]:
    """Return the states of xxh64, seed 0, before the first byte of texts of one length of fewer than 32 bytes."""
    return np.full(count, np.uint64(length) + PRIMES[4], dtype=np.uint64)


def with_lane(states: NDArray[np.uint64], lanes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return states after 8 further bytes."""
    states = rotated(states ^ mixed_lanes(lanes), 27)
    states *= PRIMES[0]
    states += PRIMES[3]
    return states


def mixed_lanes(lanes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 8 bytes as they are put into a state."""
    mixed = rotated(lanes * PRIMES[1], 31)
    mixed *= PRIMES[0]
    return mixed


def finished_hashes(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of states after the last byte; the states are used up."""
    states ^= states >> np.uint64(33)
    states *= PRIMES[1]
    states ^= states >> np.uint64(29)
    states *= PRIMES[2]
    states ^= states >> np.uint64(32)
    return states


def text_hashes(texts: Sequence[bytes | memoryview]) -> NDArray[np.uint64]:
    """Return xxh64 with seed 0 of each text in UTF-8. Raises ImportError."""
    from xxhash import xxh64_intdigest  # noqa: PLC0415 - integers do without it

    return np.fromiter(map(xxh64_intdigest, texts), dtype=np.uint64, count=len(texts))


def rotated(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """Return words with their bits moved to the left, those that leave on the right."""
    moved: NDArray[np.uint64] = words << np.uint64(bits)
    moved |= words >> np.uint64(64 - bits)
    return moved


def _remainders(numbers: NDArray[Any], num_rows: int) -> NDArray[np.int64]:
    divisor = numbers.dtype.type(num_rows)
    remainders = numbers - numbers // divisor * divisor  # numpy divides by a scalar faster than it takes remainders
    rows: NDArray[np.int64] = remainders.astype(np.int64, copy=False)
    return rows


class Predictor:
    """A model of an export, which takes raw rows.

    Args:
        folder: of the export.
        quantized: whether ``quantized.pt`` computes, and not ``model.pt``.

    Raises:
        ValueError: ``model.json`` is of another release, or there is no quantized model.
    """

    def __init__(self, folder: str | Path, *, quantized: bool = False) -> None:
        self._folder = Path(folder)
        description = json.loads((self._folder / "model.json").read_text(encoding="utf-8"))
        if description.get("schema_version") != SCHEMA:
            found = description.get("schema_version")
            raise ValueError(
                f"{self._folder / 'model.json'}: schema_version must be {SCHEMA} (found {found!r}); "
                "hint: take predict.py and model.json of one export"
            )
        if quantized and "quantized_type" not in description:
            raise ValueError(
                f"{self._folder}: has no quantized.pt; hint: export with --quantized INT8, or leave out --quantized"
            )
        self.dense: Sequence[Mapping[str, Any]] = description["preprocessing"]["dense"]
        """Name, rule for missing numbers, and transformation of each dense feature."""
        self.lookups: Sequence[Mapping[str, Any]] = description["preprocessing"]["lookups"]
        """Feature, table, and id rule of each feature that is looked up."""
        self._model = self._loaded(quantized=quantized)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that a row has."""
        return list(
            dict.fromkeys([*(each["name"] for each in self.dense), *(each["feature"] for each in self.lookups)])
        )

    def logits(self, rows: Mapping[str, Sequence[Any]], *, first_row: int = 0) -> NDArray[np.float32]:
        """Return the logit of each row; its sigmoid is the predicted chance of label 1.

        Args:
            rows: columns by name, all of one length, as the training data has them before any transformation. A dense
                number may be None or NaN where the model was trained with missing ones. A lookup is an id, a list of
                ids, or None.
            first_row: number of the first row in messages.

        Raises:
            ValueError: a column is missing, or a value is not what the model was trained on.
        """
        import torch  # noqa: PLC0415 - readers of training data import the functions above without it
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: PLC0415 - the same

        missing = next((name for name in self.columns if name not in rows), None)
        if missing is not None:
            raise ValueError(f"rows: have no column {missing!r}; hint: give it, with null for missing values")
        lengths = {name: len(rows[name]) for name in self.columns}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"rows: columns differ in length (found {lengths}); hint: give one value for each row")
        dense = np.empty((len(rows[self.columns[0]]), len(self.dense)), dtype=np.float32)
        for position, each in enumerate(self.dense):
            dense[:, position] = _dense_column(rows[each["name"]], each, first_row)
        found = [_lookup_column(rows[each["feature"]], each, first_row) for each in self.lookups]
        lookups = KeyedJaggedTensor(
            keys=[each["feature"] for each in self.lookups],
            values=torch.from_numpy(np.concatenate([values for values, _ in found])),
            lengths=torch.from_numpy(np.concatenate([counts for _, counts in found])),
        )
        with torch.no_grad():
            logits: NDArray[np.float32] = self._model(torch.from_numpy(dense), lookups).float().numpy()
        return logits

    def _loaded(self, *, quantized: bool) -> Any:  # noqa: ANN401 - a module, or TorchScript
        import torch  # noqa: PLC0415 - as above

        if quantized:
            import fbgemm_gpu  # noqa: F401, PLC0415 - registers the operators of quantized tables
            import torchrec  # noqa: F401, PLC0415 - the same

            return torch.jit.load(str(self._folder / "quantized.pt"))  # type: ignore[no-untyped-call] # torch's
        try:
            from neuroshard_trainer.serving import exported_description, exported_model  # noqa: PLC0415 - quantized.pt does without them
        except ImportError as error:
            raise ValueError(
                f"model.pt: needs the package neuroshard_trainer, which builds the model ({error}); "
                "hint: `pip install '.[trainer]'` in a checkout of NeuroShard, or use quantized.pt"
            ) from error
        return exported_model(self._folder, exported_description(self._folder))


def _dense_column(column: Sequence[Any], rule: Mapping[str, Any], first_row: int) -> NDArray[np.float32]:
    """Return one dense feature of all rows. Raises ValueError with row and column."""
    name, fill = rule["name"], rule.get("fill")
    numbers = np.empty(len(column), dtype=np.float64)
    for position, value in enumerate(column):
        where = f"row {first_row + position}, column {name}"
        if _is_missing(value) or value == "":
            if fill is None:
                raise ValueError(f"{where}: is missing; hint: fill it in, as for the training")
            numbers[position] = fill
            continue
        try:
            numbers[position] = value
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: must be a number (found {value!r})") from error
        if not np.isfinite(numbers[position]):
            raise ValueError(f"{where}: must be finite (found {numbers[position]})")
    return transformed(numbers, rule["transformation"], offset=rule.get("offset"), divisor=rule.get("divisor"))


def _lookup_column(
    column: Sequence[Any], rule: Mapping[str, Any], first_row: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return table rows of one feature, and their number for each row of the data. Raises ValueError with the place."""
    feature, num_rows = rule["feature"], rule["num_rows"]
    parse = _PARSERS[rule["id_form"]]
    listed = [_listed(value, rule["id_form"]) for value in column]
    lengths = np.array([len(each) for each in listed], dtype=np.int32)
    ids = [
        parse(value, f"row {row}, column {feature}")
        for row, values in enumerate(listed, start=first_row)
        for value in values
    ]
    try:
        rows = _rows(ids, rule["id_rule"], num_rows)
    except ImportError as error:
        raise ValueError(
            f"column {feature}: its ids are texts, which xxhash hashes ({error}); hint: `pip install xxhash`"
        ) from error
    except OverflowError as error:
        raise ValueError(
            f"column {feature}: has ids below 0 and ids from 2 ** 63 on; hint: give integers of one type of 64 bits"
        ) from error
    outside = np.flatnonzero((rows < 0) | (rows >= num_rows))
    if outside.size:
        row = first_row + int(np.searchsorted(np.cumsum(lengths), outside[0], side="right"))
        raise ValueError(
            f"row {row}, column {feature}: id {ids[outside[0]]!r} is not a row of table {rule['table']!r} "
            f"(found {num_rows} rows, from 0 on)"
        )
    return rows, lengths


def _rows(ids: Sequence[int | bytes], id_rule: str, num_rows: int) -> NDArray[np.int64]:
    """Return table rows of integers and texts. Raises ImportError; OverflowError where no type holds all integers."""
    rows = np.empty(len(ids), dtype=np.int64)
    are_texts = np.array([isinstance(each, bytes) for each in ids], dtype=bool)
    texts = [each for each in ids if isinstance(each, bytes)]
    integers = [each for each in ids if not isinstance(each, bytes)]
    if texts:
        rows[are_texts] = hash_rows(text_hashes(texts), num_rows)
    if integers:
        kind = np.uint64 if max(integers) > _LARGEST else np.int64
        rows[~are_texts] = table_rows(np.array(integers, dtype=kind), id_rule, num_rows)
    return rows


def _listed(value: Any, id_form: str) -> Sequence[Any]:  # noqa: ANN401 - what a row holds
    """Return the ids of a cell; an id alone is one of them, and a missing one none."""
    values = value if isinstance(value, list | tuple | np.ndarray) else [value]
    return [each for each in values if not _is_missing(each) and (each != "" or id_form == "Text")]


def _is_missing(value: Any) -> bool:  # noqa: ANN401 - what a row holds
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None


def _integer(value: Any, where: str) -> int:  # noqa: ANN401 - what a row holds
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{where}: must be an integer (found {value!r})")  # noqa: TRY004 - one kind for all rows
    if not -(2**63) <= int(value) < 2**64:
        raise ValueError(f"{where}: must be an integer of 64 bits (found {value})")
    return int(value)


def _text(value: Any, where: str) -> bytes:  # noqa: ANN401 - what a row holds
    if not isinstance(value, str | bytes):
        raise ValueError(f"{where}: must be a text, which is hashed as it is (found {value!r})")  # noqa: TRY004 - one kind for all rows
    return value.encode() if isinstance(value, str) else value


def _hexadecimal(value: Any, where: str) -> int:  # noqa: ANN401 - what a row holds
    digits = value if isinstance(value, str) else ""
    if not 0 < len(digits) <= HEXADECIMAL_DIGITS or set(digits) - set("0123456789abcdefABCDEF"):
        raise ValueError(
            f"{where}: must be a text of at most {HEXADECIMAL_DIGITS} hexadecimal digits (found {value!r})"
        )
    return int(digits, 16)


_PARSERS: Mapping[str, Callable[[Any, str], int | bytes]] = {
    "Integer": _integer,
    "Hexadecimal": _hexadecimal,
    "Text": _text,
    "Cell": _text,
}


def _logits(lines: Iterator[str], predictor: Predictor) -> Iterator[np.float32]:
    """Yield the logit of each JSON line. Raises ValueError with the number of a line that is not a row."""
    for first in range(1, sys.maxsize, ROWS_AT_A_TIME):
        rows = [_row(line, number) for number, line in enumerate(islice(lines, ROWS_AT_A_TIME), start=first)]
        if not rows:
            return
        for number, row in enumerate(rows, start=first):
            absent = next((name for name in predictor.columns if name not in row), None)
            if absent is not None:
                raise ValueError(
                    f"row {number}: has no column {absent!r}; hint: give it, with null for a missing value"
                )
        columns = {name: [row[name] for row in rows] for name in predictor.columns}
        yield from predictor.logits(columns, first_row=first)


def _row(line: str, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"row {number}: is not JSON: {error.msg}; hint: write one object on each line") from error
    if not isinstance(row, dict):
        raise ValueError(f"row {number}: must be an object of columns (found {line.strip()[:40]!r})")  # noqa: TRY004 - one kind for all rows
    return row


def main(arguments: Sequence[str]) -> int:
    """Print a logit for each row and return the exit code."""
    parser = argparse.ArgumentParser(prog="predict.py", description="Print the logit of each raw row.")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="file with one JSON object of columns on each line")
    parser.add_argument("--export", type=Path, default=Path(__file__).parent, help="default: the folder of this file")
    parser.add_argument("--quantized", action="store_true", help="compute by quantized.pt")
    options = parser.parse_args(arguments)
    try:
        predictor = Predictor(options.export, quantized=options.quantized)
        with options.rows.open(encoding="utf-8") as lines:
            sys.stdout.writelines(f"{logit:.7g}\n" for logit in _logits(lines, predictor))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
