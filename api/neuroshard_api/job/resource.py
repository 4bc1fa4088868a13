"""Parts of a Kubernetes resource: camelCase keys, quantities, and rules that people and the API server check alike.

A rule is written once, as CEL for the API server and as Python for everyone else, with one message for both.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES
from neuroshard_api.documents.document import Value

INT32_MAX = 2**31 - 1
"""Largest value of most counts: clients in other languages read them as 32-bit integers."""

_SUFFIX_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def any_value(_: Any) -> bool:  # noqa: ANN401 - a rule's subject is whatever it is declared on
    """Hold for every value: the check of a rule that only the API server has in this form."""
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A condition between fields, or one that the schema cannot say."""

    cel: str
    """The condition for the API server; ``self`` is the value, ``oldSelf`` the value before an update."""
    message: str
    """What the API server and this package say when it does not hold."""
    holds: Callable[[Any], bool] = any_value
    """The same condition in Python. The default is for rules on ``oldSelf``, which only the API server can check, and
    for those that a validator checks too, with the path of each field."""
    hint: Callable[[Any], str] | None = None
    """Remedy computed from the value, which this package adds; the API server has none. If unset: none."""

    def as_schema(self) -> dict[str, str]:
        """Return the rule as an entry of x-kubernetes-validations."""
        return {"rule": self.cel, "message": self.message}


def broken(rules: Sequence[Rule], value: object) -> list[str]:
    """Return the messages of the rules that a value breaks."""
    return [rule.message for rule in rules if not rule.holds(value)]


@dataclass(frozen=True, slots=True, eq=False)
class Waived:
    """Validation context in which rules between fields refuse nothing and their messages are collected."""

    problems: list[str] = field(default_factory=list)


class Part(Value):
    """A part of a resource: read by its camelCase keys, made in Python by its snake_case names."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True)

    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    """What must hold between the fields."""

    @model_validator(mode="after")
    def _follow_rules(self, info: ValidationInfo) -> Self:
        problems = broken(self.cel_rules, self)
        if problems and isinstance(info.context, Waived):
            info.context.problems.extend(problems)
        elif problems:
            raise ValueError("; ".join(problems))
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the JSON schema."""
        json_schema = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        if cls.cel_rules:
            json_schema["x-kubernetes-validations"] = [rule.as_schema() for rule in cls.cel_rules]
        return json_schema


@dataclass(frozen=True, kw_only=True, eq=False)
class Checked:
    """Annotation of a value that follows rules of its own; ``schema`` replaces what pydantic would say of its type."""

    rules: tuple[Rule, ...]
    schema: dict[str, Any] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the rules after the type; an integer or text is checked by its rules alone, for one message."""
        if self.schema.get("x-kubernetes-int-or-string"):
            return core_schema.no_info_plain_validator_function(self._int_or_string)
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say the rules in the JSON schema."""
        said = self.schema or handler(schema)  # a plain function has no schema of its own
        return {**said, "x-kubernetes-validations": [rule.as_schema() for rule in self.rules]}

    def _int_or_string(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{self.rules[0].message}, found {value!r}")  # noqa: TRY004 - pydantic wants a ValueError
        return self._checked(value)

    def _checked(self, value: object) -> object:
        problems = broken(self.rules, value)
        if problems:
            hints = [f"; hint: {rule.hint(value)}" for rule in self.rules if rule.hint and not rule.holds(value)]
            raise ValueError(f"{'; '.join(problems)}, found {value!r}{''.join(hints)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Unique:
    """Annotation of a list whose entries are distinguished: by one field, which patches merge by, or as they are."""

    key: str | None = None
    """Name of the field as users write it. None: an entry is its own key."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse an entry that occurs twice."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say the kind of list in Kubernetes' words."""
        if self.key is None:
            return {**handler(schema), "x-kubernetes-list-type": "set"}
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _checked(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [entry if self.key is None else str(getattr(entry, self.key)) for entry in entries]
        twice = sorted(key for key, count in Counter(keys).items() if count > 1)
        if twice:
            what = "" if self.key is None else f"{self.key} "
            raise ValueError(f"{what}{twice[0]!r} occurs twice; hint: remove or rename one")
        return entries


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema of a list that patches replace as a whole."""
INT_OR_STRING: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "maxLength": 32,
}
_SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_PLAIN_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
_MIB = 2**20
_MOST_GIB = 8192  # of a number that is read as GiB
_DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?(e-?[0-9]{1,2})?$"


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: re.fullmatch(pattern.strip("^$"), str(value), re.ASCII) is not None


def _cel_text(pattern: str) -> str:
    return "'" + pattern.replace("\\", "\\\\") + "'"


def _fitting_size(value: object) -> str:
    """Return the size that a text was likely meant as, as a remedy: no device or node has more than 8 TiB."""
    text = str(value)
    if _matches(_PLAIN_PATTERN)(text) and _exact_bytes(text) >= 1:
        unit, name = ("Gi", "GiB") if _exact_bytes(text) <= _MOST_GIB else ("Mi", "MiB")
        return f"write {text}{unit} for {text} {name}"
    if _matches(_SIZE_PATTERN)(text):
        return f"{text} is {int(_exact_bytes(text)):,} bytes; write a size such as 80Gi"
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt])(i?)b?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        return "write a size such as 80Gi"
    number, unit = found[1], found[2].upper()
    of_1024, of_1000 = (
        f"{number}{unit}i for {number} {unit}iB",
        f"{number}{unit.replace('K', 'k')} for {number} {unit}B",
    )
    return f"write {of_1024}" if found[3] else f"write {of_1024}, or {of_1000}"


Size = Annotated[
    int | str,
    Checked(
        rules=(
            Rule(
                cel=f"string(self).matches({_cel_text(_SIZE_PATTERN)}) && "
                "!quantity(string(self)).isLessThan(quantity('1Mi')) && "
                "!quantity(string(self)).isGreaterThan(quantity('8Pi'))",
                message="must be a size of 1Mi to 8192Ti, such as 80Gi, 500M or 1073741824 (a number alone is bytes)",
                hint=_fitting_size,
                holds=lambda value: _matches(_SIZE_PATTERN)(value) and _MIB <= _exact_bytes(value) <= MAX_MEMORY_BYTES,
            ),
        ),
        schema=INT_OR_STRING,
    ),
]
"""An amount of memory of 1 MiB or more: an integer of bytes, or text with a suffix k, M, G, T, Ki, Mi, Gi or Ti."""

PositiveDecimal = Annotated[
    int | str,
    Checked(
        rules=(
            Rule(
                cel=f"string(self).matches({_cel_text(_DECIMAL_PATTERN)}) && "
                "quantity(string(self)).isGreaterThan(quantity('0'))",
                message="must be a number above 0: an integer, or text such as '2.5' or '1e-3'",
                holds=lambda value: _matches(_DECIMAL_PATTERN)(value) and Decimal(value) > 0,
            ),
        ),
        schema=INT_OR_STRING,
    ),
]
"""A number above 0 that may have a fraction, which is written as text: Kubernetes resources hold no floats."""

ResourceAmount = Annotated[
    int | str,
    Checked(
        rules=(
            Rule(
                cel="isQuantity(string(self))",
                message="must be a quantity, such as 8, 500m or 64Gi",
                holds=_matches(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"),
            ),
        ),
        schema=INT_OR_STRING,
    ),
]
"""An amount of a resource in Kubernetes' notation."""

Name = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
"""Name of a Kubernetes object."""


def quantity(amount: int | str) -> Decimal:
    """Return a ResourceAmount as a number: ``quantity("1500m")`` is 1.5."""
    found = re.fullmatch(r"([-+.0-9]+)([a-zA-Z]*)([-+0-9]*)", str(amount))
    assert found, "a ResourceAmount was checked when it was read"
    number, suffix, exponent = Decimal(found[1]), found[2], found[3]
    if exponent:
        return number.scaleb(max(-_MAX_EXPONENT, min(int(exponent), _MAX_EXPONENT)))
    return number * _QUANTITIES[suffix]


_MAX_EXPONENT = 30
"""Kubernetes takes every quantity beyond 2**63 for 2**63; without a limit Decimal would overflow."""


_QUANTITIES = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


def size_bytes(size: int | str) -> int:
    """Return a Size in bytes, rounded down: ``size_bytes("1.5Ki")`` is 1536."""
    return int(_exact_bytes(size))


def _exact_bytes(size: int | str) -> Decimal:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(size))
    assert found, "a Size was checked when it was read"
    return Decimal(found[1]) * _SUFFIX_BYTES[found[2]]
