"""Variants of a job for ``neuroshard sweep``: every combination of the values that fields take, each a whole job.

A variant trains on the job's samples, with its global batch, for as many steps, so that metrics compare. Free are the
fields that decide the model and how it learns; a job with other data or another batch is not a variant.
"""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from neuroshard_api.documents.document import DocumentError, parse_data
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.settings import Settings, require_field, with_settings
from neuroshard_api.job.training_job import MAX_NAME_LENGTH, SWEEP_LABEL, VARIANT_ANNOTATION, DLRMTrainingJob
from neuroshard_api.process.failures import CommandError

MAX_VARIANTS: Final = 32
_TABLES: Final = "spec.model.embeddingTables"
WIDTHS: Final = f"{_TABLES}[*].embeddingDim"
"""The columns of all tables."""
FREE_FIELDS: Final = (
    "spec.model.architecture",
    "spec.model.denseArchLayerSizes",
    "spec.model.overArchLayerSizes",
    "spec.model.crossNetwork",
    "spec.model.wukong",
    "spec.model.embeddingOptimizer",
    WIDTHS,
    "spec.training.embeddingLearningRate",
    "spec.training.denseLearningRate",
    "spec.training.denseOptimizer",
    "spec.training.learningRateSchedule",
    "spec.training.gradientClipNorm",
    "spec.training.seed",
)
"""Fields that a variant may have of its own, with all fields below them."""
_SEED: Final = "spec.training.seed"
"""Of the initial weights: the samples stay, and their order."""
_NUMBER_LENGTH: Final = len("-00")


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One job of a sweep."""

    settings: Settings
    """Values by path, over what the job says."""
    file: JobFile
    """The whole job, with a name, the label of its sweep, and an annotation with its settings."""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.file.job.metadata.name

    @property
    def text(self) -> str:
        """The settings in one line, such as ``denseLearningRate=0.001, seed=2``."""
        return _text(self.settings)


def parse_choices(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each field, of texts such as ``spec.training.seed=1,2,3``, the values in YAML.

    Raises CommandError.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        path, is_given, listed = text.partition("=")
        path = path.strip()
        if path.split(".")[0] in {"model", "training"}:
            path = f"spec.{path}"
        if not is_given or not path:
            raise CommandError(
                f"--set: {text!r} has no values; hint: write FIELD=VALUE,VALUE, such as "
                "spec.training.denseLearningRate=0.001,0.002"
            )
        if path in found:
            raise CommandError(f"--set: {path} is given twice; hint: give all its values in one --set")
        try:
            values = parse_data(f"[{listed}]", where=f"--set {path}", is_json=False)
        except DocumentError as error:
            raise CommandError(
                f"{error}; hint: write values with commas between them, and lists as [512,256],[1024,512]"
            ) from error
        assert isinstance(values, list), "it is in brackets"
        values = [_without_floats(each) for each in values]
        kinds = [_comparable(each) for each in values]
        twice = next((each for place, each in enumerate(values) if kinds[place] in kinds[:place]), None)
        if not values:
            raise CommandError(f"--set {path}: has no values; hint: give at least two, with commas between them")
        if twice is not None:
            raise CommandError(f"--set {path}: has {value_text(twice)} twice; hint: leave one out")
        found[path] = values
    return found


def expanded(file: JobFile, choices: Mapping[str, Sequence[Any]]) -> tuple[Variant, ...]:
    """Return a variant for every combination of values, in their order, the last field changing fastest.

    Args:
        file: the job.
        choices: values by path. A mapping sets each of the fields in it.

    Raises:
        CommandError: a field is unknown, is not free, or is set twice; or there are too many variants, or one alone.
        DocumentError: a variant is not a job.
    """
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > MAX_VARIANTS:
        raise CommandError(f"--set: makes {count} variants, and a sweep has at most {MAX_VARIANTS}; hint: give fewer")
    if count == 1:
        raise CommandError("--set: makes one variant alone; hint: give a field at least two values: FIELD=A,B")
    longest = MAX_NAME_LENGTH - _NUMBER_LENGTH
    if len(file.job.metadata.name) > longest:
        raise CommandError(
            f"{file.path}: metadata.name: leaves no room for a variant's number (found {len(file.job.metadata.name)} "
            f"characters); hint: shorten it to {longest}"
        )
    combinations = [
        _merged([leaf for path, value in zip(choices, values, strict=True) for leaf in _leaves(path, value)])
        for values in itertools.product(*choices.values())
    ]
    variants = tuple(_variant(file, settings, number) for number, settings in enumerate(combinations))
    models = [(each.file.job.spec.model, each.file.job.spec.training) for each in variants]
    for place, model in enumerate(models):
        if model in models[:place]:
            texts = (variants[models.index(model)].text, variants[place].text)
            raise CommandError(f"--set: makes one variant twice: {' and '.join(texts)}; hint: leave one out")
    return variants


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each path that no other one has."""
    found = {}
    for path in paths:
        words = path.split(".")
        ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        found[path] = next(
            end for end in ends if sum(other == end or other.endswith(f".{end}") for other in paths) <= 1
        )
    return found


def value_text(value: object) -> str:
    """Return a value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def with_metadata(file: JobFile, *, name: str, text: str) -> dict[str, Any]:
    """Return the metadata of a job of a sweep.

    Args:
        file: the job that the sweep is of.
        name: of the job of the sweep.
        text: settings of its variant; of several, a line for each.
    """
    metadata = dict(file.document.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), SWEEP_LABEL: file.job.metadata.name}
    annotations = {**(metadata.get("annotations") or {}), VARIANT_ANNOTATION: text}
    return {**metadata, "name": name, "labels": labels, "annotations": annotations}


def _variant(file: JobFile, settings: Settings, number: int) -> Variant:
    document = _with_values(file, settings)
    name = f"{file.job.metadata.name}-{number:02}"
    document["metadata"] = with_metadata(file, name=name, text=_text(settings))
    job = DLRMTrainingJob.from_data(document, where=f"{file.path} with {_text(settings)}")
    found = JobFile(path=file.path, job=job, document=document, config_maps=file.config_maps)
    return Variant(settings=settings, file=found)


def _with_values(file: JobFile, settings: Settings) -> dict[str, Any]:
    fields = {path: value for path, value in settings.items() if path != WIDTHS}
    if _SEED in fields:
        fields["spec.experimental.data.seed"] = file.job.spec.sample_seed
    document = with_settings(copy.deepcopy(dict(file.document)), fields)
    if WIDTHS in settings:
        tables = document["spec"]["model"].get("embeddingTables")
        if tables is None:
            raise CommandError(
                f"--set {WIDTHS}: the tables of {file.path} are in embeddingTablesFrom"
                "; hint: write them into spec.model.embeddingTables"
            )
        for table in tables:
            table["embeddingDim"] = settings[WIDTHS]
    return document


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the free fields that a value sets, with their values. Raises CommandError for what is not free."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
        return
    if path != WIDTHS and not path.startswith(_TABLES):
        require_field(path)
    if not any(path == free or path.startswith(f"{free}.") for free in FREE_FIELDS):
        if path.startswith(_TABLES):
            raise CommandError(
                f"--set {path}: tables are the same in all variants but for their columns; hint: {WIDTHS}=32,64"
            )
        raise CommandError(
            f"--set {path}: is the same in all variants, so that their metrics compare; hint: make another job of "
            f"each value, or vary one of {', '.join(FREE_FIELDS)}"
        )
    yield path, value


def _merged(leaves: Sequence[tuple[str, object]]) -> Settings:
    paths = [path for path, _ in leaves]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise CommandError(f"--set: {twice} is set twice; hint: leave one out")
    return dict(leaves)


def _text(settings: Settings) -> str:
    if not settings:
        return "the job as it is"
    names = short_names(list(settings))
    return ", ".join(f"{names[path]}={value_text(value)}" for path, value in settings.items())


def _comparable(value: object) -> object:
    """Return a number in one form, however it is written; anything else as it is."""
    try:
        number = Decimal(value) if isinstance(value, int | str) else None
    except InvalidOperation:
        return value
    return value if number is None or number.is_nan() else number  # two of these are never equal


def _without_floats(value: object) -> object:
    """Return a value with its fractions as text: resources of Kubernetes hold no floats."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return [_without_floats(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_floats(each) for name, each in value.items()}
    return value
