"""JSON as bytes: the same values, depths and items that a parser finds, whatever is in the text."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from neuroshard_operator.observed.json_text import ItemReader, depth_of, is_unicode, members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab"\\{}[]:, \n\u00e9\ud7ff'),
    lambda below: st.lists(below) | st.dictionaries(st.text('a"\\{}'), below),
    max_leaves=20,
)
MAPPINGS = st.dictionaries(st.text('ab"\\{}'), VALUES, max_size=4)


def depth(value: Any) -> int:
    """Return the depth of lists and mappings."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if below is None else 1 + max(map(depth, below), default=0)


@given(VALUES, st.booleans())
def test_the_depth_is_that_of_the_parsed_value(value: Any, ascii_only: bool) -> None:  # noqa: FBT001 - drawn
    """Brackets in strings count for nothing."""
    assert depth_of(json.dumps(value, ensure_ascii=ascii_only).encode()) == depth(value)


@given(MAPPINGS, st.booleans(), st.sampled_from([None, 1, 3]))
def test_the_members_are_those_of_the_parsed_mapping(
    value: dict[str, Any],
    ascii_only: bool,  # noqa: FBT001 - drawn
    indent: int | None,
) -> None:
    """However it is written."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    found = members(text, lambda _: True)

    assert {json.loads(key): json.loads(each) for key, each in found.items()} == value


@given(st.lists(MAPPINGS, max_size=5), MAPPINGS, st.booleans(), st.booleans(), st.integers(1, 40))
def test_a_list_that_comes_in_chunks_gives_each_item_once(
    items: list[Any],
    metadata: dict[str, Any],
    items_first: bool,  # noqa: FBT001 - drawn
    ascii_only: bool,  # noqa: FBT001 - drawn
    size: int,
) -> None:
    """Wherever the chunks are cut, and in whichever order the API server writes the members of the list."""
    parts = {"items": items, "metadata": metadata} if items_first else {"metadata": metadata, "items": items}
    text = json.dumps({"kind": "List", **parts}, ensure_ascii=ascii_only).encode()
    reader, found = ItemReader(), []
    for start in range(0, len(text), size):
        found += [json.loads(item) for item in reader.feed(text[start : start + size])]

    assert found == items
    assert json.loads(reader.rest()) == {"kind": "List", **parts, "items": []}


def test_half_a_pair_is_no_character() -> None:
    """Such a string can be parsed and then neither be encoded nor written; what looks like one may be its name."""
    assert not is_unicode(rb'{"a": "\ud800"}')
    assert not is_unicode(rb'{"a": "\udc00\ud800"}')
    assert not is_unicode(b'{"a": "\xff"}')
    assert is_unicode(rb'{"a": "\ud83d\ude00"}')
    assert is_unicode(rb'{"a": "C:\\ud800"}')


def test_a_million_brackets_need_no_stack() -> None:
    """Nothing calls itself for a level."""
    text = b'{"a": ' + b"[" * 500_000 + b"]" * 500_000 + b', "b": 1}'

    assert depth_of(text) == 500_001
    assert members(text, b'"b"'.__eq__) == {b'"b"': b"1"}
    assert members(text[:-100], lambda _: True) == {}
