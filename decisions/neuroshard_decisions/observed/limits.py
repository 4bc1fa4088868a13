"""How large the contents of ConfigMaps can be, checked before a parser makes objects of them. Calls no API.

Workers, planners, users and anyone else who may edit a ConfigMap write them; the operator is one process for all of
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml
from neuroshard_api.documents.config_map import ConfigMapContents, unpack_files
from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, decoded, decompressed
from neuroshard_api.documents.yaml_text import count_yaml_values

from neuroshard_decisions import names


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How large a result of one kind can be."""

    stored_bytes: int
    """Of all values as the ConfigMap holds them."""
    file_bytes: int
    """Of each file, decompressed."""
    values: int
    """In one document: numbers, words, lists and mappings."""
    containers: int
    """Lists and mappings in one document; a parser needs about a kilobyte for each, be it empty."""


LIMITS: Mapping[str, Limits] = {
    names.WORKER: Limits(stored_bytes=640 * 1024, file_bytes=1024 * 1024, values=50_000, containers=10_000),
    **dict.fromkeys(
        (names.PROFILE, names.PROFILER, names.CALIBRATOR),
        Limits(stored_bytes=2 * 1024 * 1024, file_bytes=4 * 1024 * 1024, values=200_000, containers=20_000),
    ),
    **dict.fromkeys(
        (names.PLAN, names.PLANNER),
        Limits(stored_bytes=2 * 1024 * 1024, file_bytes=16 * 1024 * 1024, values=1_000_000, containers=150_000),
    ),
}
"""Of results by role. Reports of workers are compressed above 512 KiB: those of 128 ranks and 1,000 features have about
300 KiB in all. A plan of 10,000 tables for 1,024 devices has 5.9 MB; base64 makes a ConfigMap a third larger."""
TABLES = Limits(stored_bytes=1024 * 1024, file_bytes=4 * 1024 * 1024, values=250_000, containers=40_000)
"""Of a user's ConfigMap with tables: 10,000 tables have 100,000 values."""


def unpacked(contents: ConfigMapContents, where: str, limits: Limits) -> dict[str, bytes]:
    """Return the files of a ConfigMap. Raises DocumentError where they are more than such a result can be."""
    stored = sum(len(value) for value in (*contents.data.values(), *contents.binary_data.values()))
    if stored > limits.stored_bytes:
        raise DocumentError(where, [f"holds {stored:,} bytes, more than the {limits.stored_bytes:,} of its kind"])
    files = unpack_files(contents, where=where, limit_bytes=limits.file_bytes)
    for name, content in files.items():
        if name.endswith(".json"):
            check_values(content, limits, is_json=True, where=f"{where}: {name}")
    return files


def bounded_file(key: str, content: bytes, limits: Limits, *, where: str) -> tuple[str, bytes]:
    """Return the name and the content, decompressed, of one file in a user's ConfigMap. Raises DocumentError."""
    name = key.removesuffix(COMPRESSED_SUFFIX)
    content = decompressed(key, content, where=where, limit_bytes=limits.file_bytes)
    check_values(content, limits, is_json=not name.endswith((".yaml", ".yml")), where=where)
    return name, content


def check_values(content: bytes, limits: Limits, *, is_json: bool, where: str) -> None:
    """Refuse a document of too many values, or of a nesting that no parser survives. Raises DocumentError."""
    text = decoded(content, where=where)
    try:
        values, containers = _count_json_values(text) if is_json else count_yaml_values(text)
    except yaml.YAMLError:
        return  # its parser finds the same, and names the place
    except ValueError as error:
        raise DocumentError(where, [str(error)]) from error
    if containers > limits.containers or values > limits.values:
        raise DocumentError(where, [f"holds more than {limits.values:,} values, or {limits.containers:,} lists"])


def _count_json_values(text: str) -> tuple[int, int]:
    """Count the values of JSON text, and the lists and mappings among them, by its signs, those in words included."""
    containers = text.count("[") + text.count("{")
    return containers + text.count(","), containers
