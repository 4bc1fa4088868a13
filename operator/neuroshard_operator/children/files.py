"""ConfigMaps that hand files to pods: the job itself, the planner's request, profiles and plans. All immutable."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.documents.config_map import ConfigMapContents, pack_files
from neuroshard_api.documents.document import COMPRESSED_SUFFIX
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.plan_request import counts_dense
from neuroshard_api.job.training_job import AFFECTS

from neuroshard_operator import names
from neuroshard_operator.actions import Manifest
from neuroshard_operator.children.metadata import labels, metadata
from neuroshard_operator.context import Context

JOB_FILE = "job.json"
TABLES_FILE = "tables.json"
REQUEST_FILE = "request.json"

_FILES = "files"
_IN_JOB_FILE = {name for name, affected in AFFECTS.items() if affected.job_file}
"""Parts of the spec that change only while a job is suspended: the file of a running job stays as it is."""


def job_files(context: Context, tables: TableSet | None = None) -> Manifest:
    """Return the ConfigMap with the job file, and with a table set where a stage needs one.

    Its name says its content, so a job that changed gets another one.

    Raises:
        ConfigMapTooLargeError: the tables do not fit.
    """
    files = {JOB_FILE: _job_document(context, _IN_JOB_FILE)}
    if tables is not None:
        files[TABLES_FILE] = tables.to_json().encode()
    digest = hashlib.sha256(b"\0".join(files.values())).hexdigest()
    return _config_map(metadata(context, names.files(context.name, digest), _FILES), pack_files(files))


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


def request_file(context: Context, inputs_hash: str, request: str) -> Manifest:
    """Return the ConfigMap with the planner's request, and with the model where its dense part is counted.

    Raises:
        ConfigMapTooLargeError: the tables do not fit.
    """
    named = metadata(context, names.request(context.name, inputs_hash), names.REQUEST)
    files = {REQUEST_FILE: request.encode()}
    if counts_dense(context.spec):
        files[JOB_FILE] = _job_document(context, {"model": True, "training": {"dense_optimizer"}})
    return _config_map(named, pack_files(files))


def plan_config_map(context: Context, plan_hash: str, inputs_hash: str) -> Manifest:
    """Return the plan's ConfigMap without its data, which is copied from where the plan was published."""
    more = {names.INPUTS_HASH_LABEL: names.short(inputs_hash)}
    named = metadata(context, names.plan(context.name, plan_hash), names.PLAN, more)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True}


def inputs_config_map(context: Context, number: int) -> Manifest:
    """Return the ConfigMap of the reports that a candidate plan is made for, without its data, which is copied."""
    named = metadata(context, names.inputs(context.name, number), names.INPUTS)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True}


def steps_config_map(context: Context, plan_hash: str) -> Manifest:
    """Return the ConfigMap of the reports that cost models are corrected by, without its data, which is copied."""
    named = metadata(context, names.steps(context.name, plan_hash), names.STEPS)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True}


def profile_config_map(context: Context, name: str, profile_key: str, *, shared: bool) -> Manifest:
    """Return the profile's ConfigMap without its data. A shared one has no owner: it outlives the job that made it."""
    more = {names.PROFILE_KEY_LABEL: names.short(profile_key)}
    named = metadata(context, name, names.PROFILE, more)
    if shared:
        kept = {key: value for key, value in labels(context, names.PROFILE, **more).items() if key not in _OF_ONE_JOB}
        named = {"name": name, "namespace": named["namespace"], "labels": kept}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True}


def stored_names(files: Manifest) -> dict[str, str]:
    """Return the keys of a ConfigMap by the file that they hold: large ones are compressed."""
    keys: Sequence[str] = [*files["data"], *files["binaryData"]]
    return {key.removesuffix(COMPRESSED_SUFFIX): key for key in keys}


_OF_ONE_JOB = {names.JOB_LABEL, "app.kubernetes.io/instance"}


def _config_map(named: Mapping[str, Any], contents: ConfigMapContents) -> Manifest:
    filled = {"data": dict(contents.data), "binaryData": dict(contents.binary_data)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True, **filled}
