"""The custom resource ``DLRMTrainingJob``: a model, and how it is profiled, planned and trained."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from neuroshard_api.documents.document import (
    DocumentError,
    Value,
    validated,
    validated_without_unknown,
)
from neuroshard_api.documents.kinds import problem_of_document, problem_of_resource, problem_of_text
from neuroshard_api.job.earlier_fields import EARLIER_FIELDS, earlier_fields, sentence, without_echoes
from neuroshard_api.job.resource import Part, Rule, Waived, broken
from neuroshard_api.job.spec import GROUP, Spec
from neuroshard_api.job.status import Status

VERSION = "v1alpha1"
API_VERSION: Final = "training.neuroshard.dev/v1alpha1"
KIND: Final = "DLRMTrainingJob"
PLURAL = "dlrmtrainingjobs"
SHORT_NAMES = ("dlrmjob", "dtj")

APPROVED_PLAN_ANNOTATION = f"{GROUP}/approved-plan"
"""With launchPolicy Manual: the workers start once it names the plan's ConfigMap, as status.plan.configMapRef does."""

SWEEP_LABEL = f"{GROUP}/sweep"
"""Name of the sweep that a job is a variant of."""
VARIANT_ANNOTATION = f"{GROUP}/variant"
"""Settings in which a job of a sweep differs from the others, in one line."""

MAX_NAME_LENGTH = 44
"""Children are called <name>-worker-<attempt>-<index> and the like, and a host name has at most 63 characters."""


class Metadata(Value):
    """What of an object's metadata is used here; the API server knows more fields, which are passed over."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True)

    name: str
    """Unique among the jobs of a namespace."""
    namespace: str | None = None
    """None: not in a cluster, or in the client's namespace."""
    uid: str | None = None
    """The API server's identity of the object. None: not in a cluster."""
    generation: int | None = None
    """Counts the changes of the spec."""
    resource_version: str | None = None
    """Changes with every write."""
    creation_timestamp: datetime | None = None
    """When the API server took the object."""
    deletion_timestamp: datetime | None = None
    """When it was asked to go. None: it was not."""
    labels: dict[str, str] = Field(default_factory=dict)
    """The object's labels; kueue.x-k8s.io/queue-name asks for a queue of Kueue."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """The object's annotations."""


_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class JobManifest(Part):
    """A job as people write it. Its schema compiles sooner than that of a job with its status."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            message=f"metadata.name must have at most {MAX_NAME_LENGTH} characters",
            holds=lambda job: len(job.metadata.name) <= MAX_NAME_LENGTH,
        ),
        Rule(
            cel="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message="metadata.name must be lower-case letters, digits and hyphens, and begin with a letter",
            holds=lambda job: _NAME.fullmatch(job.metadata.name) is not None,
        ),
    )

    api_version: Literal["training.neuroshard.dev/v1alpha1"] = API_VERSION
    """Group and version of the resource."""
    kind: Literal["DLRMTrainingJob"] = KIND
    """Kind of the resource."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: Spec
    """What is wanted."""

    @classmethod
    def from_data(cls, raw: object, *, where: str = "job") -> Self:
        """Read plain data as JSON or YAML parsers, or the API server, give it. Raises DocumentError."""
        data = _of_this_kind(raw, where)
        earlier = earlier_fields(data)
        try:
            job = validated(cls, data, where=where)
        except DocumentError as error:
            found = [*earlier.values(), *without_echoes(error.problems, earlier), *_name_problems(data)]
            raise DocumentError(where, list(dict.fromkeys(found))) from error
        assert not earlier, "the models have no earlier field"
        return job

    def to_json(self) -> str:
        """Return canonical JSON: what was not given and has no default left out, one final newline."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


class DLRMTrainingJob(JobManifest):
    """A model, and how it is profiled, planned and trained."""

    status: Status | None = None
    """What the operator says of the job; None before it first looked at it."""

    @classmethod
    def from_stored_data(cls, raw: object, *, where: str = "job") -> "StoredJob":
        """Read a resource that the API server keeps: another release's definition may have let it in.

        Raises:
            DocumentError: a field that this release knows cannot be read.
        """
        waived = Waived()
        job, dropped = validated_without_unknown(cls, _of_this_kind(raw, where), where=where, context=waived)
        earlier = [sentence(path) for path in dropped if path in EARLIER_FIELDS]
        return StoredJob(
            job=job,
            unknown=tuple(path for path in dropped if path not in EARLIER_FIELDS),
            broken_rules=tuple(dict.fromkeys([*earlier, *waived.problems])),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJob:
    """A resource as the API server keeps it."""

    job: DLRMTrainingJob
    unknown: tuple[str, ...] = ()
    """Paths of the fields that this release does not know."""
    broken_rules: tuple[str, ...] = ()
    """Sentences about earlier fields, and messages of the rules between fields that this release has and the resource
    breaks."""


def _name_problems(data: Mapping[str, object]) -> list[str]:
    """Return the problems of a job's name, which its own rules tell only where the spec is right."""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str):
        return []
    return broken(DLRMTrainingJob.cel_rules, SimpleNamespace(metadata=SimpleNamespace(name=name)))


def _of_this_kind(raw: object, where: str) -> dict[str, object]:
    """Return data of the kind and version of a DLRMTrainingJob. Raises DocumentError."""
    if not isinstance(raw, dict):
        raise DocumentError(where, [problem_of_text(raw, where=where, expected=f"a {KIND}")])
    problem = problem_of_document(raw)
    if problem is not None:
        raise DocumentError(where, [problem])
    expected = {"apiVersion": API_VERSION, "kind": KIND}
    if raw.get("kind", KIND) != KIND and not str(raw.get("apiVersion")).startswith(f"{GROUP}/"):
        raise DocumentError(where, [str(problem_of_resource(raw, expected=f"a {KIND}"))])
    problems = [
        f"{key}: is missing; hint: add `{key}: {value}`"
        if key not in raw
        else f"{key}: is {raw[key]!r}, expected {value!r}"
        for key, value in expected.items()
        if raw.get(key) != value
    ]
    if problems:
        raise DocumentError(where, problems)
    return raw
