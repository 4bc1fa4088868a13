"""``--set``: fields of a job by their paths, over what a job file says or in place of one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from neuroshard_api.documents.document import DocumentError, parse_data
from neuroshard_api.documents.field_names import models_of, nearest
from neuroshard_api.job.earlier_fields import EARLIER_FIELDS, sentence
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError

Settings = Mapping[str, Any]
"""Values by path, such as ``spec.experimental.planner.seed``."""


def parse_settings(texts: Sequence[str]) -> Settings:
    """Return settings that were typed as ``PATH=VALUE``, the value in YAML. Raises CommandError."""
    found: dict[str, Any] = {}
    for text in texts:
        path, is_given, value = text.partition("=")
        path = path.strip()
        if not is_given or not value.strip():
            raise CommandError(
                f"--set: {text!r} has no value; hint: write PATH=VALUE, such as spec.experimental.planner.seed=3, or "
                "PATH=null for a field that is unset"
            )
        if path in found:
            raise CommandError(f"--set: {path} is given twice; hint: leave one out")
        try:
            found[path] = parse_data(value, where=f"--set {path}", is_json=False)
        except DocumentError as error:
            raise CommandError(str(error)) from error
    return found


def with_settings(document: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a job as plain data with settings in place of what it says. Raises CommandError for an unknown path."""
    for path in settings:
        require_field(path)
        inside = next((other for other in settings if other.startswith(f"{path}.")), None)
        if inside is not None:
            raise CommandError(f"--set {inside}: excludes --set {path}, which has it too; hint: give one of them")
    whole: dict[str, Any] = dict(document)
    for path, value in settings.items():
        *above, last = path.split(".")
        part = whole
        for name in above:
            below = part.get(name)
            part[name] = part = dict(below) if isinstance(below, Mapping) else {}
        part[last] = value
    return whole


def require_field(path: str) -> None:
    """Do nothing if a job has such a field. Raises CommandError with its present place, or the nearest name."""
    if path in EARLIER_FIELDS:
        raise CommandError(f"--set {sentence(path)}")
    kind: type[BaseModel] | None = DLRMTrainingJob
    names = path.split(".")
    if len(names) == 1 or names[0] != "spec":
        raise CommandError(
            f"--set: {path!r} is not a field of a job's spec; hint: write its whole path: spec.planner.algorithm"
        )
    for number, name in enumerate(names):
        parent = ".".join(names[:number])
        if kind is None:
            raise CommandError(f"--set: {parent} has no fields (found {path}); hint: set it as a whole")
        fields = _fields(kind)
        if name not in fields:
            near = nearest(name, tuple(fields))
            remedy = f"did you mean {parent}.{near}" if near else f"its fields are {', '.join(fields)}"
            raise CommandError(f"--set: {parent} has no field {name!r}; hint: {remedy}")
        kind = next(models_of(fields[name], of_entries=False), None)


def setting_paths() -> Iterator[str]:
    """Yield the path of each field of a job that holds a value, and no document."""
    pending: list[tuple[str, type[BaseModel]]] = [("spec", Spec)]
    for path, kind in pending:
        for name, annotation in _fields(kind).items():
            below = next(models_of(annotation, of_entries=False), None)
            if below is None:
                yield f"{path}.{name}"
            else:
                pending.append((f"{path}.{name}", below))


def _fields(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the types of a document's fields by their names in files."""
    return {field.alias or key: field.annotation for key, field in kind.model_fields.items()}
