"""Job files that must be refused: what each breaks, where, and what the API server and this package say of it."""

from dataclasses import dataclass
from typing import Any

from support import builders

TABLE = {"name": "user", "numEmbeddings": 1000, "embeddingDim": 16}
GPUS = {"limits": {"nvidia.com/gpu": 8}}
SIZE = "must be a size of 1Mi to 8192Ti, such as 80Gi, 500M or 1073741824 (a number alone is bytes)"
NUMBER = "must be a number above 0: an integer, or text such as '2.5' or '1e-3'"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenJob:
    """A job that breaks one thing."""

    name: str
    data: dict[str, Any]
    path: str
    """Of the value that is wrong."""
    server: str
    """What the API server says behind the path."""
    package: str
    """What DLRMTrainingJob.from_data says behind the path, its own where it has one."""
    package_path: str | None = None
    """Of the value for the package. If unset: as for the API server."""


def broken_rule(name: str, path: str, message: str, found: str = "", **spec: Any) -> BrokenJob:
    """Return a job that breaks a rule, of which both sides say the same words. ``found``: the value, in JSON."""
    value = f" {found}:" if found else ""
    package = f"{message}, found {found.replace(chr(34), chr(39))}" if found else message
    return BrokenJob(
        name=name,
        data=builders.job_data(**spec),
        path=path,
        server=f"Invalid value:{value} {message}",
        package=package,
    )


def looked_up(name: str, column: str, message: str, use: str, **data: Any) -> BrokenJob:
    """Return a job with a table of a column that no feature may be; the package names the table, and the use."""
    return BrokenJob(
        name=name,
        data=builders.job_data(
            model=model(TABLE | {"name": column}), data={"format": "Parquet", "path": "log", **data}
        ),
        path="spec",
        server=f"Invalid value: {message}",
        package=f"{column!r} is {use}, which no feature may be; hint: remove the feature and its table",
        package_path="spec.model.embeddingTables[0].name",
    )


def too_wide(name: str, message: str, path: str, package: str, **spec: Any) -> BrokenJob:
    """Return a job for GPUs with more columns than their kernels take; the package names the field."""
    return BrokenJob(
        name=name,
        data=builders.job_data(trainer={"resourcesPerNode": GPUS}, **spec),
        path="spec",
        server=f"Invalid value: {message}",
        package=package,
        package_path=path,
    )


def broken_schema(name: str, path: str, server: str, package: str, **spec: Any) -> BrokenJob:
    """Return a job that breaks the schema, of which each side says its own words. A part that is None is left out."""
    data = builders.job_data(**spec)
    data["spec"] = {key: value for key, value in data["spec"].items() if value is not None}
    return BrokenJob(name=name, data=data, path=path, server=server, package=package)


def model(*tables: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a model with these tables, or with the usual one."""
    return {"embeddingTables": list(tables or (TABLE,)), **fields}


NAMES = (
    ("too-long", "a" * 45, "metadata.name must have at most 44 characters"),
    ("digit-first", "1st", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    ("dotted", "a.b", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    ("upper-case", "Job", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    (
        "template",
        "$(HOSTNAME)",
        "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter",
    ),
    ("path", "../job", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
)
"""Names of jobs, with the messages about them."""

UNKNOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("in-the-spec", {"planer": {}}, "spec.planer"),
    ("in-a-table", {"model": model(TABLE | {"rows": 7})}, "spec.model.embeddingTables[0].rows"),
    ("in-snake-case", {"trainer": {"num_nodes": 2}}, "spec.trainer.num_nodes"),
)
"""Fields that do not exist, by the path that both sides name."""
