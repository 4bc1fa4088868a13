"""Files that are handed to what runs: the job itself, and the planner's request."""

import hashlib
from collections.abc import Mapping
from typing import Any

from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.plan_request import counts_dense
from neuroshard_api.job.spec import AFFECTS

from neuroshard_decisions import names
from neuroshard_decisions.actions import Files
from neuroshard_decisions.context import Context

JOB_FILE = "job.json"
TABLES_FILE = "tables.json"
REQUEST_FILE = "request.json"

_FILES = "files"
_IN_JOB_FILE = {name for name, affected in AFFECTS.items() if affected.job_file}
"""Parts of the spec that change only while a job is suspended: the file of a running job stays as it is."""


def job_files(context: Context, tables: TableSet | None = None) -> Files:
    """Return the job file, and with a table set where a stage needs one.

    Their name says their content, so a job that changed gets others. Raises ConfigMapTooLargeError.
    """
    files = {JOB_FILE: _job_document(context, _IN_JOB_FILE)}
    if tables is not None:
        files[TABLES_FILE] = tables.to_json().encode()
    digest = hashlib.sha256(b"\0".join(files.values())).hexdigest()
    return checked(context, Files(name=names.files(context.name, digest), role=_FILES, contents=files))


def _job_document(context: Context, parts: Mapping[str, Any] | set[str]) -> bytes:
    """Return the job with these parts of its spec, and without what the API server adds."""
    plain = context.job.model_copy(
        update={"metadata": context.job.metadata.model_copy(update=_ONLY_NAME), "status": None}
    )
    include: Any = {"api_version": True, "kind": True, "metadata": True, "spec": parts}
    return plain.model_dump_json(indent=1, exclude_none=True, include=include).encode()


_ONLY_NAME: Mapping[str, Any] = {
    "namespace": None,
    "uid": None,
    "generation": None,
    "resource_version": None,
    "creation_timestamp": None,
    "deletion_timestamp": None,
    "labels": {},
    "annotations": {},
}


def request_file(context: Context, inputs_hash: str, request: str) -> Files:
    """Return the planner's request, and the model where its dense part is counted. Raises ConfigMapTooLargeError."""
    files = {REQUEST_FILE: request.encode()}
    if counts_dense(context.spec):
        files[JOB_FILE] = _job_document(context, {"model": True, "variants": True, "training": {"dense_optimizer"}})
    name = names.request(context.name, inputs_hash)
    return checked(context, Files(name=name, role=names.REQUEST, contents=files))


def checked(context: Context, files: Files) -> Files:
    """Return the files, where they fit into what keeps them."""
    if context.rules.in_config_maps:
        _ = files.packed
    return files
