"""A job file as people keep it: one job, and the ConfigMaps that it names, as separate documents of one file."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, parse_data, read_text
from neuroshard_api.documents.kinds import kinds_of
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.feature_columns import require_feature_columns
from neuroshard_api.job.plan_request import tables_of_file
from neuroshard_api.job.training_job import KIND, DLRMTrainingJob


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFile:
    """A job, and what else its file holds."""

    path: Path
    job: DLRMTrainingJob
    document: Mapping[str, Any]
    """The job in the file's own words, as plain data."""
    config_maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """ConfigMaps by name, as plain data."""

    @classmethod
    def of(cls, raw: object, *, path: Path, config_maps: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """Return plain data as the job of a file, without a status, of which nothing is planned. Raises DocumentError.

        Args:
            raw: the job.
            path: of the file, for errors; tables of other files begin in its folder.
            config_maps: those next to the job. If unset: none.
        """
        document = {key: value for key, value in raw.items() if key != "status"} if isinstance(raw, dict) else {}
        job = DLRMTrainingJob.from_data(document or raw, where=str(path))
        return cls(path=path, job=job, document=document, config_maps=config_maps or {})

    @property
    def has_tables(self) -> bool:
        """Whether the tables are here: in the file, or in one next to it, and not in a ConfigMap of the cluster."""
        source = self.job.spec.model.embedding_tables_from
        reference = None if source is None else source.config_map_key_ref
        return reference is None or reference.name in self.config_maps

    def tables(self) -> TableSet:
        """Return the job's tables, its own or those of the ConfigMap or file that it names. Raises DocumentError."""
        model = self.job.spec.model
        own = model.inline_tables(self.job.metadata.name)
        if own is not None:
            return own
        assert model.embedding_tables_from is not None, "a job's model has one of the two"
        reference = model.embedding_tables_from.config_map_key_ref
        if reference is None:
            assert model.embedding_tables_from.file is not None, "a source of tables has one of the two"
            path = self.path.parent / model.embedding_tables_from.file
            where, tables = str(path), read_table_set(path)
        else:
            where = f"{self.path}: ConfigMap {reference.name}, {reference.key}"
            content = self.content(reference.name, reference.key, field_path="spec.model.embeddingTablesFrom")
            tables = tables_of_file(reference.key, content, where=where)
        require_feature_columns(model, self.job.spec.data, tables, where=where)
        return tables

    def content(self, name: str, key: str, *, field_path: str) -> bytes:
        """Return one key of a ConfigMap of the file. Raises DocumentError where it is not there."""
        config_map = self.config_maps.get(name)
        if config_map is None:
            problem = f"names the ConfigMap {name!r}, which is not in this file; hint: add it behind a line `---`"
            raise DocumentError(str(self.path), [f"{field_path}: {problem}"])
        text = (config_map.get("data") or {}).get(key)
        if isinstance(text, str):
            return text.encode()
        encoded = (config_map.get("binaryData") or {}).get(key)
        if not isinstance(encoded, str):
            problem = f"the ConfigMap {name!r} of this file has no text under the key {key!r}"
            raise DocumentError(
                str(self.path), [f"{field_path}: {problem}; hint: add it to data, or to binaryData in base64"]
            )
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            problem = f"binaryData.{key} of the ConfigMap {name!r} is not base64: {error}"
            raise DocumentError(str(self.path), [f"{field_path}: {problem}"]) from error


_MANIFEST = re.compile(r"^(apiVersion|kind)\s*:", re.MULTILINE)
"""A resource of Kubernetes in YAML; the documents of this project have no such keys."""


def is_job_file(path: Path) -> bool:
    """Return whether a file holds resources of Kubernetes, by its name and its keys. Raises DocumentError."""
    suffix = Path(path.name.removesuffix(COMPRESSED_SUFFIX)).suffix.lower()
    if suffix not in {".yaml", ".yml", ".json", ""} or not path.is_file():
        return False
    text = read_text(path)
    if suffix != ".json":
        return _MANIFEST.search(text) is not None
    found = parse_data(text, where=str(path), is_json=True) if '"apiVersion"' in text else None
    return isinstance(found, dict) and "schema_version" not in found and "apiVersion" in found


def read_job_file(path: Path) -> JobFile:
    """Read the one job of a YAML or JSON file. Raises DocumentError."""
    from neuroshard_api.documents.yaml_text import parse_manifests  # noqa: PLC0415 - who plans tables in JSON needs no YAML

    where = str(path)
    documents = parse_manifests(read_text(path), where=where)
    jobs: list[Any] = [data for data in documents if not isinstance(data, dict) or data.get("kind") != "ConfigMap"]
    if len(jobs) != 1:
        found = ", ".join(kinds_of(documents)) or "nothing"
        expected = f"expected one {KIND}, and ConfigMaps that it names"
        hint = "hint: keep other resources in files of their own"
        raise DocumentError(where, [f"holds {found}, {expected}; {hint}"])
    config_maps = {
        str((data.get("metadata") or {}).get("name")): data
        for data in documents
        if isinstance(data, dict) and data.get("kind") == "ConfigMap"
    }
    return JobFile.of(jobs[0], path=path, config_maps=config_maps)
