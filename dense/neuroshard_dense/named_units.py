"""Units of a dense part whose strategy the choices name by the path of a module."""

from collections.abc import Iterator
from itertools import groupby

from neuroshard_api.documents.dense_layout import DenseChoices
from neuroshard_api.documents.dense_profile import DenseProfile, DenseUnit


def divided(profile: DenseProfile, choices: DenseChoices) -> DenseProfile:
    """Return the profile with repeated units divided where the choices name a strategy for some of their modules only.

    A profile that does not name all modules of a unit that repeats is returned as it is.
    """
    if any(len(unit.modules) != unit.repeats for unit in profile.units):
        return profile
    return profile.model_copy(update={"units": tuple(part for unit in profile.units for part in _parts(unit, choices))})


def _parts(unit: DenseUnit, choices: DenseChoices) -> Iterator[DenseUnit]:
    """Yield the unit's modules that follow one another with the same named strategy, or with none."""
    for _, paths in groupby(unit.modules, key=choices.strategy_of):
        first, *further = paths
        yield unit.model_copy(
            update={"module": first, "repeats": 1 + len(further), "further_modules": tuple(further) or None}
        )
