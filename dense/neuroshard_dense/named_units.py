"""Units of a dense part whose strategy the choices name by the path of a module."""

from collections.abc import Iterator
from itertools import groupby

from neuroshard_api.documents.dense_layout import DenseChoices
from neuroshard_api.documents.dense_profile import DenseProfile, DenseUnit

MOST_LISTED = 12
"""Modules that a message lists."""


def names_modules(profile: DenseProfile) -> bool:
    """Return whether a profile names all modules of units that repeat; those of earlier releases do not."""
    return all(len(unit.modules) == unit.repeats for unit in profile.units)


def named_units_problem(profile: DenseProfile, choices: DenseChoices) -> str | None:
    """Return the first module of the choices that a profile lacks, field first. None: it has all, or names none."""
    modules = [path for unit in profile.units for path in unit.modules]
    for index, each in enumerate((choices.units or ()) if names_modules(profile) else ()):
        if not any(each.covers(path) for path in modules):
            further = f", and {len(modules) - MOST_LISTED:,} more" if len(modules) > MOST_LISTED else ""
            return (
                f"dense_choices.units[{index}].module: the dense part has no module at or below {each.module!r}"
                f"; hint: name one of {', '.join(modules[:MOST_LISTED])}{further}, or a part of the model above them"
            )
    return None


def divided(profile: DenseProfile, choices: DenseChoices) -> DenseProfile:
    """Return the profile with repeated units divided where the choices name a strategy for some of their modules only.

    A profile that does not name all modules of a unit that repeats is returned as it is.
    """
    if not names_modules(profile):
        return profile
    return profile.model_copy(update={"units": tuple(part for unit in profile.units for part in _parts(unit, choices))})


def _parts(unit: DenseUnit, choices: DenseChoices) -> Iterator[DenseUnit]:
    """Yield the unit's modules that follow one another with the same named strategy, or with none."""
    for _, paths in groupby(unit.modules, key=choices.strategy_of):
        first, *further = paths
        yield unit.model_copy(
            update={"module": first, "repeats": 1 + len(further), "further_modules": tuple(further) or None}
        )
