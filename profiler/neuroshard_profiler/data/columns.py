"""Columns of a log: those that are looked up, and those that are passed over, with the reason. Reads no files."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from neuroshard_api.job.feature_columns import DEFAULT_LABEL_COLUMN, DENSE_PREFIX
from neuroshard_api.process.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenColumns:
    """The columns of a file by their use."""

    features: tuple[str, ...]
    """Columns that are looked up, in the order of the file."""
    has_label: bool = False
    """Whether the label is known: it was named, or has the job's default name."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """The reason by column. Empty where the features were named."""

    @property
    def passed_over_text(self) -> str:
        """All columns that are passed over, those of one reason together."""
        found = sorted(self.passed_over.items(), key=lambda each: each[1])
        groups = [(reason, [name for name, _ in each]) for reason, each in groupby(found, key=lambda each: each[1])]
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups)


def chosen_columns(
    kinds: Mapping[str, str],
    ids: Collection[str],
    *,
    features: Sequence[str],
    label: str | None,
    session: str | None,
    time: str | None,
    ignored: Sequence[str],
    where: str,
) -> ChosenColumns:
    """Return the columns that are looked up: never the label, the session, the time, or a dense column.

    Args:
        kinds: type by column, in the order of the file.
        ids: columns that can be looked up.
        features: columns that are asked for. Empty: all that can be.
        label: If unset: the job's default, where there is such a column.
        session: If unset: samples have no sessions.
        time: If unset: samples have no times.
        ignored: columns that are not looked up.
        where: file, for errors.

    Raises:
        DataError: a column is missing, cannot be looked up, or has another use; or none can be looked up.
    """
    named = [name for name in (label, session, time) if name is not None]
    others = dict.fromkeys(ignored, "ignored")
    others |= {name: use for name, use in ((time, "the time"), (session, "the session")) if name is not None}
    others[DEFAULT_LABEL_COLUMN if label is None else label] = "the label"
    has_label = label is not None or DEFAULT_LABEL_COLUMN in kinds
    for name in (*features, *ignored, *named):
        if name not in kinds:
            raise DataError(f"{where}: column {name!r}: is missing; hint: choose among {', '.join(kinds)}")
    for name in features:
        if name in others:
            raise _no_feature(f"{where}: column {name!r}", name, others[name])
        if name not in ids:
            raise DataError(
                f"{where}: column {name!r}: holds {kinds[name]}, expected an integer, a text, or a list of them"
                "; hint: choose another column with --feature"
            )
    if features:
        return ChosenColumns(features=tuple(features), has_label=has_label)
    reasons = {name: kind for name, kind in kinds.items() if name not in ids}
    reasons |= {name: "a dense feature by its name" for name in ids if re.fullmatch(f"{DENSE_PREFIX}[0-9]+", name)}
    reasons |= others
    passed_over = {name: reasons[name] for name in kinds if name in reasons}
    chosen = ChosenColumns(
        features=tuple(name for name in kinds if name not in passed_over), has_label=has_label, passed_over=passed_over
    )
    if not chosen.features:
        raise DataError(
            f"{where}: has no column of integers, texts, or lists of them (found {chosen.passed_over_text or 'none'})"
            "; hint: write ids as integers or texts"
        )
    return chosen


def chosen_arrays(
    kinds: Mapping[str, str],
    *,
    features: Sequence[str],
    label: str | None,
    session: str | None,
    ignored: Sequence[str],
    where: str,
) -> ChosenColumns:
    """Return the features of an NPZ file: names of two arrays, of which none is the label or the session.

    Args:
        kinds: type by array.
        features: features that are asked for. Empty: all that have an array of values.
        label: array. If unset: the job's default, where there is such an array.
        session: array. If unset: samples have no sessions.
        ignored: features that are not looked up.
        where: file, for errors.

    Raises:
        DataError: an array is missing, or has another use; or there is no feature.
    """
    found = sorted(name.removesuffix(_VALUES) for name in kinds if name.endswith(_VALUES))
    if label is not None and label not in kinds:
        raise DataError(f"{where}: the array {label!r} is missing; it has {', '.join(sorted(kinds))}; hint: add it")
    for name in ignored:
        if name not in found:
            raise DataError(f"{where}: feature {name!r}: is missing; hint: choose among {', '.join(found)}")
    of_label = DEFAULT_LABEL_COLUMN if label is None else label
    others = dict.fromkeys(ignored, "ignored")
    others |= {of_label.removesuffix(end): "the label" for end in ("", _VALUES, _LENGTHS)}
    for name in features:
        if name in others:
            raise _no_feature(f"{where}: feature {name!r}", name, others[name])
    wanted = features or [name for name in found if name not in others]
    if not wanted:
        raise DataError(
            f"{where}: has no array <feature>.values; it has {', '.join(sorted(kinds)) or 'none'}"
            "; hint: name ids <feature>.values, and their numbers <feature>.lengths"
        )
    uses = {f"{name}{end}": use for name, use in others.items() for end in ("", _VALUES, _LENGTHS)}
    uses |= {} if session is None else {session: "the session"}
    own = {f"{name}{end}" for name in wanted for end in (_VALUES, _LENGTHS)}
    return ChosenColumns(
        features=tuple(wanted),
        has_label=label is not None or DEFAULT_LABEL_COLUMN in kinds,
        passed_over={} if features else {name: uses.get(name, kind) for name, kind in kinds.items() if name not in own},
    )


_VALUES = ".values"
_LENGTHS = ".lengths"


def _no_feature(where: str, name: str, use: str) -> DataError:
    """Return the error of a feature that has another use."""
    option = use.removeprefix("the ")
    remedy = "" if use == "ignored" else f", or give --{option} the column that is {use}"
    return DataError(f"{where}: is {use}, which no feature may be; hint: leave --feature {name} out{remedy}")
