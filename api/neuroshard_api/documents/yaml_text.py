"""Plain data in YAML text, within limits that a parser survives. JSON's readers are in `document`."""

from typing import Any

import yaml

from neuroshard_api.documents.document import MAX_KEYS, DocumentError

MAX_EXPANDED_VALUES = 5_000_000
"""Maximum number of values of a document once its aliases are written out."""

MAX_NESTING = 100
"""Maximum depth of lists and mappings: the C library composes them recursively, and overflows its stack."""


def parse_manifests(text: str, *, where: str) -> list[object]:
    """Return the plain data of every document in YAML text, which separates them by ``---``. JSON is YAML too.

    Raises DocumentError with line and column.
    """
    try:
        return _documents(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise DocumentError(where, [f"is not valid YAML{at}: {getattr(error, 'problem', None) or error}"]) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(where, [f"cannot be read: {error}"]) from error


def _documents(text: str) -> list[object]:
    count_yaml_values(text)
    documents = [data for data in yaml.load_all(text, Loader=_Loader) if data is not None]
    if _expanded_values(documents, {}) > MAX_EXPANDED_VALUES:
        raise ValueError(f"its aliases expand to more than {MAX_EXPANDED_VALUES:,} values; hint: write them out")
    return documents


def count_yaml_values(text: str) -> tuple[int, int]:
    """Count the values of YAML text, and the lists and mappings among them, before a parser makes objects.

    Aliases are not followed.

    Raises:
        yaml.YAMLError: the text is not YAML.
        ValueError: it nests deeper than `MAX_NESTING`.
    """
    values = containers = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            containers, depth = containers + 1, depth + 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_NESTING:
            raise ValueError(f"it nests lists and mappings more than {MAX_NESTING} deep")
    return values, containers


def _expanded_values(data: object, known: dict[int, int]) -> int:
    """Return the number of values in plain data, a value that is referred to twice counted twice."""
    if not isinstance(data, dict | list):
        return 1
    if id(data) not in known:
        known[id(data)] = 0  # a cycle is found by its own check
        below = data.values() if isinstance(data, dict) else data
        known[id(data)] = 1 + sum(_expanded_values(each, known) for each in below)
    return known[id(data)]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C loader is optional
    """YAML's safe loader, but a key that occurs twice is an error and not silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's signature
        """Return the mapping. Raises ConstructorError with the place of a repeated key."""
        if len(node.value) > MAX_KEYS:
            problem = f"a mapping has {len(node.value):,} keys; at most {MAX_KEYS:,} are read"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} occurs twice in one mapping; hint: remove one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping
