"""Columns of the data that no feature may be: the label, the dense features, the session, and the time.

A model that looks up its own label predicts it, whatever the samples are. One check for all formats refuses it: in a
job that is read, in the tables that a ConfigMap holds before they are planned, and in the trainer before data is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.model import Model
from neuroshard_api.job.resource import Rule
from neuroshard_api.job.training import WITH_NAMED_COLUMNS, Data, DataFormat

DEFAULT_LABEL_COLUMN = "label"
"""The label where the job names none."""
DENSE_PREFIX = "dense_"
"""Of the dense columns where the job names none; their number follows."""

_TABLES = "self.model.embeddingTables"
_LOOKS_UP = f"!has({_TABLES}) || {_TABLES}.all(t, has(t.featureNames) && size(t.featureNames) > 0 ? "


def _refused(column: str, use: str, *, where: str) -> Rule:
    """Return the API server's rule that no table looks up a column.

    Args:
        column: expression of its name.
        use: of the column, for the message.
        where: expression of when the rule counts.
    """
    return Rule(
        cel=f"!({where}) || {_LOOKS_UP}!({column} in t.featureNames) : t.name != {column})",
        message=f"no feature of model.embeddingTables may be {use}; hint: remove the feature and its table",
    )


COLUMN_RULES = (
    _refused(
        "(has(self.data.labelColumn) ? self.data.labelColumn : 'label')",
        "the label (data.labelColumn, or else label)",
        where="self.data.format != 'Synthetic'",
    ),
    _refused("self.data.sessionColumn", "data.sessionColumn", where="has(self.data.sessionColumn)"),
    _refused("self.data.timeColumn", "data.timeColumn", where="has(self.data.timeColumn)"),
    Rule(
        cel=f"!has(self.data.denseColumns) || {_LOOKS_UP}true : !(t.name in self.data.denseColumns))",
        message="no table of model.embeddingTables without featureNames may have the name of one of data.denseColumns"
        "; hint: remove the table",
    ),
)
"""The API server's part of the check, within its limit for what a rule may cost: 512 tables of 64 features each cannot
be compared with 4,096 dense columns there. The operator compares them, and refuses the job in its status."""

_ARRAYS = (".values", ".lengths")
"""Ends of the names of a feature's arrays in NPZ files."""
_CRITEO_DENSE = 13
_MOVIELENS = {"rating": "the rating, of which the label is made", "timestamp": "the time, which is a dense feature"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnProblem:
    """A field that does not agree with others."""

    path: str
    """Of the field, below the job's spec or the table set."""
    text: str
    """What is wrong, with a hint."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def other_columns(data: Data, *, num_dense: int) -> Mapping[str, str]:
    """Return the columns of the data that are not features, with the use of each.

    Made-up samples have no columns. A dataset of the user's own gives labels and dense features apart from the lookups,
    so that only the default name of the label counts.
    """
    if data.format is DataFormat.SYNTHETIC:
        return {}
    label = data.label_column or DEFAULT_LABEL_COLUMN
    origin = "the default of spec.data.labelColumn" if data.label_column is None else "spec.data.labelColumn"
    found = {label: f"the label ({origin})"}
    if data.format in WITH_NAMED_COLUMNS:
        dense = {f"{DENSE_PREFIX}{index}": "the default of spec.data.denseColumns" for index in range(num_dense)}
        if data.dense_columns is not None:
            dense = {name: f"spec.data.denseColumns[{index}]" for index, name in enumerate(data.dense_columns)}
        found |= {name: f"a dense feature ({where})" for name, where in dense.items() if name not in found}
        for use, field, name in (
            ("session", "sessionColumn", data.session_column),
            ("time", "timeColumn", data.time_column),
        ):
            if name is not None:
                found.setdefault(name, f"the {use} (spec.data.{field})")
    elif data.format is DataFormat.NPZ:
        found |= {label.removesuffix(end): found[label] for end in _ARRAYS}
        found.setdefault("dense", "the array of the dense features")
    elif data.format is DataFormat.MOVIELENS_100K:
        found |= _MOVIELENS
    elif data.format is not DataFormat.DATASET:
        found |= {f"int_{index}": "a dense feature of Criteo's data" for index in range(_CRITEO_DENSE)}
    return found


def job_column_problems(model: Model, data: Data) -> list[ColumnProblem]:
    """Return columns that are used in two ways: as a dense feature, session, or time, or as a feature of own tables."""
    found = []
    label = data.label_column or DEFAULT_LABEL_COLUMN
    for index, name in enumerate(data.dense_columns or ()):
        if name == label:
            text = f"{name!r} is the label (spec.data.labelColumn), which the model may not read; hint: leave it out"
            found.append(ColumnProblem(path=f"data.denseColumns[{index}]", text=text))
    uses: dict[str, str] = {label: "the label"}
    for use, field, column in (
        ("the session", "sessionColumn", data.session_column),
        ("the time", "timeColumn", data.time_column),
    ):
        if column in uses:
            text = f"{column!r} is {uses[column]}, too; hint: name another column"
            found.append(ColumnProblem(path=f"data.{field}", text=text))
        elif column is not None:
            uses[column] = use
    others = other_columns(data, num_dense=model.num_dense_features)
    for number, table in enumerate(model.embedding_tables or ()):
        path = f"model.embeddingTables[{number}]"
        names = {f"{path}.featureNames[{index}]": name for index, name in enumerate(table.feature_names)}
        found += _problems(names or {f"{path}.name": table.name}, others)
    return found


def require_feature_columns(model: Model, data: Data, tables: TableSet, *, where: str) -> None:
    """Do nothing if no feature of the tables is another column of the data. Raises DocumentError.

    Args:
        model: of the job.
        data: of the job.
        tables: of the model, wherever they come from.
        where: file or object of the tables, for errors.
    """
    problems: list[ColumnProblem] = []
    others = other_columns(data, num_dense=model.num_dense_features)
    for number, table in enumerate(tables.tables):
        path = f"tables[{number}]"
        names = {f"{path}.feature_names[{index}]": name for index, name in enumerate(table.feature_names)}
        problems += _problems(names or {f"{path}.name": table.name}, others)
    if problems:
        raise DocumentError(where, [str(problem) for problem in problems])


def _problems(names: Mapping[str, str], others: Mapping[str, str]) -> Iterator[ColumnProblem]:
    for path, name in names.items():
        if name in others:
            text = (
                f"{name!r} is {others[name]}, which no feature may be; hint: remove the feature and its table, or name "
                "another column in spec.data"
            )
            yield ColumnProblem(path=path, text=text)
