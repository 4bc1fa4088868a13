"""The way from raw data to what a model takes: transformed numbers, and numbers of table rows.

A reader of training data states it and applies it; an export has it, so that a server does the same to its requests.

    raw number --fill--> number --transformation--> dense feature
    raw id --id rule--> row of the table
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.tables import IdRule, TableName

ColumnName = Annotated[str, Field(min_length=1, max_length=128)]


class Missing(StrEnum):
    """What takes the place of a missing dense number."""

    ZERO = "Zero"
    MEAN = "Mean"
    """The mean of the training data, in ``fill``."""
    ERROR = "Error"
    """Nothing: a missing number is refused."""


class Transformation(StrEnum):
    """Function of a dense number x."""

    IDENTITY = "Identity"
    """x"""
    LOG1P = "Log1p"
    """log(1 + max(x, 0))"""
    LINEAR = "Linear"
    """(x - offset) / divisor"""


class IdForm(StrEnum):
    """How the data writes ids."""

    INTEGER = "Integer"
    """Integers of 64 bits."""
    HEXADECIMAL = "Hexadecimal"
    """Texts of up to 16 hexadecimal digits; an empty one is missing."""
    TEXT = "Text"
    """Texts as they are; an empty one is an id."""
    CELL = "Cell"
    """Texts of CSV as they are, also those that look like integers; an empty one is missing."""


class DensePreprocessing(Value):
    """One dense feature."""

    name: ColumnName
    """Its column."""
    missing: Missing
    """What takes the place of a missing number, before the transformation."""
    fill: float | None = None
    """The number that does. If unset: a missing number is refused."""
    transformation: Transformation = Transformation.IDENTITY
    offset: float | None = None
    """Of Linear. If unset: the transformation is another one."""
    divisor: Annotated[float, Field(gt=0)] | None = None
    """Of Linear. If unset: the transformation is another one."""

    @model_validator(mode="after")
    def _require_arguments(self) -> Self:
        is_linear = self.transformation is Transformation.LINEAR
        if is_linear != (self.offset is not None) or is_linear != (self.divisor is not None):
            raise ValueError(
                f"offset and divisor belong to Linear, found {self.offset} and {self.divisor} for "
                f"{self.transformation.value}; hint: export the model again"
            )
        if (self.missing is Missing.ERROR) != (self.fill is None):
            wanted = "no fill" if self.missing is Missing.ERROR else "a fill"
            raise ValueError(
                f"missing {self.missing.value} needs {wanted}, found {self.fill}; hint: export the model again"
            )
        return self


class LookupPreprocessing(Value):
    """One feature that is looked up; a missing id looks nothing up."""

    feature: ColumnName
    """Its column."""
    table: TableName
    """The table that is looked up."""
    num_rows: PositiveCount
    """Rows of the table."""
    id_rule: IdRule
    id_form: IdForm = IdForm.INTEGER
    numbered_by: str | None = None
    """Files whose values are numbered from 0 in the order in which they first occur, to be ids. If unset: ids are those
    of the data."""


class Preprocessing(Value):
    """All features of a model, in the order of its inputs."""

    dense: tuple[DensePreprocessing, ...]
    lookups: tuple[LookupPreprocessing, ...]
