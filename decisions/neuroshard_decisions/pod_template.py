"""Whether `spec.podTemplate.spec` has the types that the operator itself reads; the API server checks the rest."""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.documents.document import field_path
from pydantic import BaseModel, ConfigDict, ValidationError


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Named(_Open):
    name: str


class _PodSpec(_Open):
    nodeSelector: dict[str, str] | None = None  # noqa: N815 - Kubernetes' names
    tolerations: list[dict[str, Any]] | None = None
    affinity: dict[str, Any] | None = None
    securityContext: dict[str, Any] | None = None  # noqa: N815
    volumes: list[_Named] | None = None
    imagePullSecrets: list[_Named] | None = None  # noqa: N815
    runtimeClassName: str | None = None  # noqa: N815
    schedulerName: str | None = None  # noqa: N815


def template_problem(spec: Mapping[str, Any]) -> str | None:
    """Return the problem with the types of a pod template; None where there is none."""
    try:
        _PodSpec.model_validate(spec)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = field_path(fault["loc"])
        problem = f"{fault['msg'][:1].lower()}{fault['msg'][1:]}"
        return f"spec.podTemplate.spec.{path}: {problem}, found {str(fault['input'])[:60]!r}"
    return None
