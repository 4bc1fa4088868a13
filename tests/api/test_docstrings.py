"""Docstrings of attributes, which describe the fields of schemas."""

from typing import ClassVar

from neuroshard_api.documents.docstrings import attribute_docstrings


class Documented:
    """A class with attributes."""

    first: int = 1
    """Of the first."""
    plain: ClassVar[str] = "x"
    second: list[int]
    """Of the second,
    in two lines."""

    def third(self) -> int:
        """Return 3; a method is not an attribute."""
        inner: int = 3
        """Of a local variable."""
        return inner


class Heir(Documented):
    """A class with one more attribute."""

    fourth: str
    """Of the fourth."""


def test_attributes_have_the_docstrings_below_them() -> None:
    """Attributes without one and names within methods are left out."""
    assert attribute_docstrings(Documented) == {"first": "Of the first.", "second": "Of the second,\nin two lines."}


def test_inherited_attributes_are_left_to_the_parent() -> None:
    """A class's own body counts alone."""
    assert attribute_docstrings(Heir) == {"fourth": "Of the fourth."}
