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
    label: str | None = None
    """Column of the label: it was named, or has the job's default name. None: it is not known."""
    dense: tuple[str, ...] = ()
    """Columns of numbers that are no ids, and those that were named as dense, in the order of the file."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """The reason by column. Empty where the features were named."""

    @property
    def has_label(self) -> bool:
        """Whether the label is known."""
        return self.label is not None

    @property
    def passed_over_text(self) -> str:
        """All columns that are passed over, those of one reason together."""
        found = sorted(self.passed_over.items(), key=lambda each: each[1])
        groups = [
            (reason, [name or "''" for name, _ in each]) for reason, each in groupby(found, key=lambda each: each[1])
        ]
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
    numbers: Collection[str] = (),
    dense: Sequence[str] = (),
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
        numbers: columns of numbers that are no ids by their type.
        dense: further columns that are dense features.

    Raises:
        DataError: a column is missing, cannot be looked up, or has another use; or none can be looked up.
    """
    named = [name for name in (label, session, time) if name is not None]
    others = dict.fromkeys(ignored, "ignored") | {"": "no name"}
    others |= {name: use for name, use in ((time, "the time"), (session, "the session")) if name is not None}
    others[DEFAULT_LABEL_COLUMN if label is None else label] = "the label"
    found_label = label or (DEFAULT_LABEL_COLUMN if DEFAULT_LABEL_COLUMN in kinds else None)
    for name in (*features, *dense, *ignored, *named):
        if name not in kinds:
            raise DataError(f"{where}: column {name!r}: is missing; hint: choose among {', '.join(kinds)}")
    for option, column, used in (("--session", session, {found_label}), ("--time", time, {found_label, session})):
        if column is not None and column in used:
            use = "the label" if column == found_label else "the session"
            raise DataError(f"{where}: column {column!r}: is {use}; hint: give {option} another column")
    _require_one_use(features, dense, others, where=where)
    by_name = {name for name in kinds if re.fullmatch(f"{DENSE_PREFIX}[0-9]+", name)} - set(features)
    found_dense = tuple(
        name for name in kinds if (name in numbers or name in dense or name in by_name) and name not in others
    )
    for name in features:
        if name not in ids:
            raise DataError(
                f"{where}: column {name!r}: holds {kinds[name]}, expected an integer, a text, or a list of them"
                "; hint: choose another column with --feature"
            )
    if features:
        return ChosenColumns(features=tuple(features), label=found_label, dense=found_dense)
    reasons = {name: kind for name, kind in kinds.items() if name not in ids}
    reasons |= {name: "a dense feature by its name" for name in ids if name in by_name}
    reasons |= dict.fromkeys(dense, "a dense feature")
    reasons |= others
    passed_over = {name: reasons[name] for name in kinds if name in reasons}
    chosen = ChosenColumns(
        features=tuple(name for name in kinds if name not in passed_over),
        label=found_label,
        dense=found_dense,
        passed_over=passed_over,
    )
    if not chosen.features:
        raise DataError(
            f"{where}: has no column of integers, texts, or lists of them (found {chosen.passed_over_text or 'none'})"
            "; hint: write ids as integers or texts"
        )
    return chosen


def _require_one_use(features: Sequence[str], dense: Sequence[str], others: Mapping[str, str], *, where: str) -> None:
    """Do nothing if no column that was asked for has another use. Raises DataError."""
    for option, asked in (("--feature", features), ("--dense", dense)):
        for name in asked:
            if name in others:
                raise _no_feature(f"{where}: column {name!r}", f"{option} {name}", others[name])
    both = next((name for name in features if name in dense), None)
    if both is not None:
        raise DataError(f"{where}: column {both!r}: is a feature and dense; hint: give --feature or --dense for it")


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
            raise _no_feature(f"{where}: feature {name!r}", f"--feature {name}", others[name])
    wanted = features or [name for name in found if name not in others]
    if not wanted:
        raise DataError(
            f"{where}: has no array <feature>.values; it has {', '.join(sorted(kinds)) or 'none'}"
            "; hint: name ids <feature>.values, and their numbers <feature>.lengths"
        )
    uses = {f"{name}{end}": use for name, use in others.items() for end in ("", _VALUES, _LENGTHS)}
    uses |= {"dense": DENSE_ARRAY} | ({} if session is None else {session: "the session"})
    own = {f"{name}{end}" for name in wanted for end in (_VALUES, _LENGTHS)}
    return ChosenColumns(
        features=tuple(wanted),
        label=label or (DEFAULT_LABEL_COLUMN if DEFAULT_LABEL_COLUMN in kinds else None),
        passed_over={} if features else {name: uses.get(name, kind) for name, kind in kinds.items() if name not in own},
    )


DENSE_ARRAY = "the dense features"
"""Reason that the array of dense features is not looked up."""
_VALUES = ".values"
_LENGTHS = ".lengths"


def _no_feature(where: str, given: str, use: str) -> DataError:
    """Return the error of a feature that an option gave, and that has another use."""
    option = use.removeprefix("the ")
    remedy = "" if use == "ignored" else f", or give --{option} the column that is {use}"
    return DataError(f"{where}: is {use}, which no feature may be; hint: leave {given} out{remedy}")
