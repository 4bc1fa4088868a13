"""The base of every document, and the reading of files into documents with errors a person can act on."""

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator

from neuroshard_api.documents.docstrings import attribute_docstrings
from neuroshard_api.documents.field_names import field_names, models_at, nearest
from neuroshard_api.documents.kinds import problem_of_resource, problem_of_several, problem_of_text, use_of
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.hints import in_one_line


class DocumentError(ExpectedError, ValueError):
    """A file or value that people gave us does not follow its schema.

    The message names the place (file and field path), what was found there and what to try.

    Attributes:
        problems: one sentence per fault, each beginning with the field's path.
    """

    def __init__(self, where: str, problems: list[str]) -> None:
        self.where = where
        self.problems = problems
        super().__init__(where, problems)

    def __str__(self) -> str:
        return f"{self.where}: " + in_one_line(self._shown())

    def sentences(self) -> list[str]:
        """Return a sentence for each problem, with its own remedy."""
        return [f"{self.where}: {problem}" for problem in self._shown()]

    def _shown(self) -> list[str]:
        shown = self.problems[:MAX_PROBLEMS_SHOWN]
        rest = len(self.problems) - len(shown)
        return [*shown, *([f"and {rest} more"] if rest else [])]


class FieldError(ValueError):
    """A validator of a whole value found one of its fields at fault.

    Attributes:
        path: of the field within the value.
    """

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


_NOT_TEXT = "is not text in UTF-8; is it the right file? If so, save it as plain text"
_LISTS = ("list_type", "tuple_type")
"""Faults of a value that is not a list."""
_SPELLING = "check its spelling or remove it"
MAX_PROBLEMS_SHOWN = 10  # enough to fix a file in one go without filling the terminal
COMPRESSED_SUFFIX = ".gz"
"""At the end of a file's name: it holds gzip data, as ConfigMaps keep large files."""
MOST_NEIGHBORS = 1000
"""Files of a folder among which a mistyped name is looked for."""
UNPACKED_LIMIT_BYTES = 64 * 1024 * 1024
"""Maximum bytes of one file after decompression: a few bytes of gzip must not fill a reader's memory."""
ALL_FAULTS_UP_TO_VALUES = 20_000
"""Number of values up to which every fault of a document is listed. Larger documents stop at the first faulty entry of
each list: pydantic keeps some kilobytes for each fault, and a document may consist of nothing else."""
MAX_KEYS = 10_000
"""Maximum number of keys of one mapping, for the same reason."""


class Value(BaseModel):
    """A frozen, strict part of a document: unknown keys and wrong types are errors, NaN never passes.

    pydantic compiles a class when it is first used, under a lock: a command uses a part of those that it imports. So
    defaults that are parts are made by `model_construct`, which compiles nothing.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the class's JSON schema, its fields described by their docstrings."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for parent in reversed(cls.__mro__):
            if issubclass(parent, Value):
                for name, text in attribute_docstrings(parent).items():
                    field = cls.model_fields.get(name)
                    if field is not None:
                        properties[field.alias or name]["description"] = text
        return schema


class Document(Value):
    """A value with a schema version of its own, written as one JSON or YAML file."""

    schema_name: ClassVar[str]
    """The document's kind and version, such as ``table-set/v1``; also the only value of ``schema_version``."""
    earlier_versions: ClassVar[tuple[str, ...]] = ()
    """Versions of the kind whose documents are read as the present one: it only has more fields."""

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "document") -> Self:
        """Read JSON text. Raises DocumentError, never pydantic's own error."""
        raw = parse_data(text if isinstance(text, str) else decoded(text, where=where), where=where, is_json=True)
        return cls.from_data(raw, where=where)

    @classmethod
    def from_data(cls, raw: object, *, where: str = "document") -> Self:
        """Read plain data as JSON or YAML parsers give it. Raises DocumentError."""
        if not isinstance(raw, dict):
            expected = f"a mapping with schema_version {cls.schema_name!r}"
            raise DocumentError(where, [problem_of_text(raw, where=where, expected=expected)])
        problem = problem_of_resource(raw, expected=repr(cls.schema_name))
        if problem is not None:
            raise DocumentError(where, [problem])
        version = raw.get("schema_version")
        if version in cls.earlier_versions:
            raw, version = {**raw, "schema_version": cls.schema_name}, cls.schema_name
        if version != cls.schema_name:
            raise DocumentError(where, [_version_problem(version, cls.schema_name)])
        return validated(cls, raw, where=where)

    @classmethod
    def is_named_by(cls, raw: object) -> bool:
        """Return whether plain data says that it is such a document, of the present version or an earlier one."""
        return isinstance(raw, dict) and raw.get("schema_version") in {cls.schema_name, *cls.earlier_versions}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a ``.json``, ``.yaml`` or ``.yml`` file. Raises DocumentError, naming the file."""
        return cls.from_data(read_data(path), where=str(path))

    def to_json(self) -> str:
        """Return canonical JSON: fields in their declared order, unset optional fields left out, one final newline."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


_ValueT = TypeVar("_ValueT", bound=BaseModel)


def validated(cls: type[_ValueT], raw: object, *, where: str) -> _ValueT:
    """Validate plain data as ``cls`` under JSON's rules. Raises DocumentError with one problem per fault."""
    with told_as_problems(cls, where=where):
        return _validated(cls, raw, where=where)


@contextmanager
def told_as_problems(cls: type[BaseModel], *, where: str) -> Iterator[None]:
    """Raise a DocumentError with one problem per fault where pydantic finds a value of ``cls`` faulty."""
    try:
        yield
    except ValidationError as error:
        faults = _without_echoes(error.errors(include_url=False))
        raise DocumentError(where, [_problem(fault, cls) for fault in faults]) from error


def validated_without_unknown(
    cls: type[_ValueT], raw: object, *, where: str, context: object = None
) -> tuple[_ValueT, tuple[str, ...]]:
    """Validate data that a newer release may have written: keys that this release does not know are dropped.

    Args:
        cls: model of the data.
        raw: plain data.
        where: file or object, for errors.
        context: pydantic's validation context.

    Returns:
        The value, and the paths of the dropped keys.

    Raises:
        DocumentError: something else is wrong, with one problem per fault.
    """
    data = raw
    dropped: list[str] = []
    while True:
        try:
            return _validated(cls, data, where=where, context=context), tuple(dropped)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
            if not unknown:
                raise DocumentError(where, [_problem(fault, cls) for fault in _without_echoes(faults)]) from error
            for location in unknown:
                data = _without(data, location)
                dropped.append(field_path(location))


def _validated(cls: type[_ValueT], raw: object, *, where: str, context: object = None) -> _ValueT:
    """Validate plain data. Raises pydantic's ValidationError; DocumentError for data that JSON cannot hold."""
    try:
        text = json.dumps(raw, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:  # YAML alone can write these: keys of any type, cycles
        raise DocumentError(where, [f"holds what JSON cannot say: {error}"]) from error
    if text.count(",") <= ALL_FAULTS_UP_TO_VALUES:
        return cls.model_validate_json(text, by_alias=True, by_name=False, context=context)
    value: _ValueT = _fail_fast_validator(cls).validate_json(text, by_alias=True, by_name=False, context=context)
    return value


def _plain(value: Any) -> object:  # noqa: ANN401 - what is not plain
    """Return a number or an array of numpy as Python's own, and any other value as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@cache
def _fail_fast_validator(cls: type[BaseModel]) -> SchemaValidator:
    """Return a validator of ``cls`` that stops at the first faulty entry of every list."""
    # The models' own validators, which the new one would use for its parts, go on after a fault.
    return SchemaValidator(_fail_fast(cls.__pydantic_core_schema__), _use_prebuilt=False)


def _fail_fast(schema: Any) -> Any:  # noqa: ANN401 - any part of a core schema
    if isinstance(schema, Mapping):
        parts = {key: _fail_fast(part) for key, part in schema.items()}
        kind = schema.get("type")  # a schema where a model has a field of this name
        is_list = isinstance(kind, str) and kind in {"list", "tuple", "set", "frozenset"}
        return parts | ({"fail_fast": True} if is_list else {})
    return [_fail_fast(part) for part in schema] if isinstance(schema, list) else schema


def _without(data: Any, location: tuple[int | str, ...]) -> Any:  # noqa: ANN401 - JSON
    """Return plain data without the value at a location."""
    first, *rest = location
    if isinstance(data, list):
        return [_without(each, tuple(rest)) if index == first else each for index, each in enumerate(data)]
    if not rest:
        return {key: value for key, value in data.items() if key != first}
    return {key: _without(value, tuple(rest)) if key == first else value for key, value in data.items()}


def read_data(path: Path) -> object:
    """Return the plain data of a JSON or YAML file. Raises DocumentError for anything unreadable."""
    is_json = path.name.removesuffix(COMPRESSED_SUFFIX).lower().endswith(".json")
    return parse_data(read_text(path), where=str(path), is_json=is_json)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark. Raises DocumentError."""
    return decoded(read_bytes(path), where=str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed where its name says that it is compressed. Raises DocumentError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DocumentError(str(path), [f"does not exist; hint: {_meant(path)}"]) from error
    except OSError as error:
        raise DocumentError(str(path), [f"cannot be read: {error.strerror or error}"]) from error
    return decompressed(path.name, content, where=str(path))


def _meant(path: Path) -> str:
    """Return the remedy for a file that does not exist: the file of its folder that was probably meant, if any."""
    names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, sorted(names), n=1) if len(names) <= MOST_NEIGHBORS else []
    return f"did you mean {path.with_name(near[0])}" if near else "check the path"


def decompressed(name: str, content: bytes, *, where: str, limit_bytes: int = UNPACKED_LIMIT_BYTES) -> bytes:
    """Return the content of a file of this name, decompressed. Raises DocumentError for damaged or oversized data."""
    if not name.endswith(COMPRESSED_SUFFIX):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(limit_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DocumentError(where, [f"is not complete gzip data: {error}; hint: write it again"]) from error
    if len(unpacked) > limit_bytes:
        raise DocumentError(where, [f"is larger than {limit_bytes:,} bytes when decompressed; hint: split it"])
    return unpacked


def decoded(content: bytes, *, where: str) -> str:
    """Return text in UTF-8, with or without a byte order mark. Raises DocumentError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(where, [_NOT_TEXT]) from error


def parse_data(text: str, *, where: str, is_json: bool) -> object:
    """Return the plain data in JSON or YAML text. Raises DocumentError with line and column."""
    if is_json:
        return _parse_json(text, where=where)
    from neuroshard_api.documents.yaml_text import parse_manifests  # noqa: PLC0415 - who reads JSON needs no YAML

    documents = parse_manifests(text, where=where)
    if len(documents) > 1:
        raise DocumentError(where, [problem_of_several(documents)])
    return documents[0] if documents else None


def _parse_json(text: str, *, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        fault = f"{error.msg.removesuffix(' starting at')} at line {error.lineno}, column {error.colno}"
        problem = f"is not complete JSON: {fault}; hint: write the file again, it may have been cut off"
        raise DocumentError(where, [problem]) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(where, [f"cannot be read: {error}"]) from error


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"a mapping has {len(pairs):,} keys; at most {MAX_KEYS:,} are read")
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        repeated = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {repeated[0]!r} occurs twice in one mapping; hint: remove one")
    return mapping


def _version_problem(found: object, expected: str) -> str:
    name = expected.split("/", maxsplit=1)[0]
    if found is None:
        return f"schema_version: is missing; hint: add `schema_version: {expected}`"
    if isinstance(found, str) and found.startswith(f"{name}/"):
        return (
            f"schema_version: is {found!r}, this release reads {expected!r}; hint: use the release that wrote the file"
        )
    return f"schema_version: is {found!r}, expected {expected!r}; hint: {use_of(found)}"


def _without_echoes(faults: Sequence[Any]) -> list[Any]:
    """Leave out the complaint that a list is too short where only its faulty entries were dropped."""
    places = [fault["loc"] for fault in faults]
    return [
        fault
        for fault in faults
        if fault["type"] != "too_short"
        or not any(len(place) > len(fault["loc"]) and place[: len(fault["loc"])] == fault["loc"] for place in places)
    ]


_NAME_HINTS: Final = {
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "; hint: use lower-case letters, digits, and hyphens between them",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "; hint: use lower-case letters, digits, and hyphens and dots between them"
    ),
}
"""What is allowed in names, by their pattern."""


def _problem(fault: Any, cls: type[BaseModel]) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, whose input is anything
    path = field_path(fault["loc"])
    kind = fault["type"]
    if kind == "missing":
        return f"{path}: is missing"
    if kind == "extra_forbidden":
        *above, last = fault["loc"]
        for each in models_at(cls, above):
            whole, whole_path = getattr(each, "shared_fields", (None, ""))
            if whole is not None and str(last) in field_names(whole, ()):
                return f"{path}: is the same in all of them; hint: set {whole_path}.{last}"
        near = nearest(str(last), field_names(cls, above))
        return f"{path}: is not a known key; hint: {f'did you mean {near}' if near else _SPELLING}"
    if kind == "too_short":
        return f"{path}: needs at least {fault['ctx']['min_length']} entries, found {fault['ctx']['actual_length']}"
    if kind == "too_long":
        return f"{path}: takes at most {fault['ctx']['max_length']} entries, found {fault['ctx']['actual_length']}"
    error = fault.get("ctx", {}).get("error")
    if isinstance(error, FieldError):
        path = f"{path}.{error.path}" if path else error.path
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind != "value_error":
        hint = _NAME_HINTS.get(fault["ctx"]["pattern"], "") if kind == "string_pattern_mismatch" else ""
        message = f"{message[:1].lower()}{message[1:]}, found {_shortened(fault['input'])}{hint}"
    if kind in _LISTS and isinstance(fault["input"], str):
        words = ", ".join(word.strip() for word in fault["input"].split(","))
        message = f"{message}; hint: write [{words}]"
    return f"{path}: {message}" if path else message


def field_path(location: tuple[int | str, ...]) -> str:
    """Return a location as people write it: ``("tables", 3, "name")`` is ``tables[3].name``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shortened(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a terminal line's worth
