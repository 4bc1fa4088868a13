"""Names of a document's fields at a place, for errors that name the nearest one."""

import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel
from pydantic.alias_generators import to_snake


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that one was probably meant to be, whatever its case style. None: none is near."""
    by_word = {to_snake(each).replace("_", ""): each for each in known}
    near = get_close_matches(to_snake(name).replace("_", "").replace("-", "").lower(), by_word, n=1)
    return by_word[near[0]] if near else None


def field_names(model: type[BaseModel], place: Sequence[int | str]) -> tuple[str, ...]:
    """Return the names of the fields at a place of a document, as files write them; none where it has no fields."""
    return tuple(field.alias or name for each in models_at(model, place) for name, field in each.model_fields.items())


def models_at(model: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models that a place of a document may be; none where it has no fields."""
    models = [model]
    for part in place:
        if isinstance(part, str):
            annotations = [
                field.annotation
                for each in models
                for name, field in each.model_fields.items()
                if part in {field.alias, name}
            ]
            models = [found for annotation in annotations for found in models_of(annotation)]
    return models


def models_of(annotation: object, *, of_entries: bool = True) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation.

    Args:
        annotation: of a field.
        of_entries: also those of the entries of lists and mappings.
    """
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
    elif of_entries or not isinstance(annotation, types.GenericAlias):
        for each in get_args(annotation):
            yield from models_of(each, of_entries=of_entries)
