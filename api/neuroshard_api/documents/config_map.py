"""Files as the contents of a Kubernetes ConfigMap, and back. Reads no file and calls no API server.

A file is one key. Text is legible in ``data``, all else is base64 in ``binaryData``. When the files together are large,
those that shrink are compressed by gzip and carry the suffix ``.gz``. docs/reference/config-maps.md tells users so.
"""

import base64
import binascii
import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuroshard_api.documents.document import COMPRESSED_SUFFIX, UNPACKED_LIMIT_BYTES, DocumentError, decompressed
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode

LIMIT_BYTES = 1024 * 1024
"""Most bytes that the values of one ConfigMap may have; Kubernetes' MaxSecretSize, which holds for ConfigMaps too."""
COMPRESS_ABOVE_BYTES = LIMIT_BYTES // 2
"""Files that are larger together are compressed. Below it a person reads every file with ``kubectl get``."""
ALWAYS_LEGIBLE_BYTES = 32 * 1024
"""A file of at most this size is never compressed: summaries stay legible next to a large plan."""
SEPARATOR = "__"
"""Stands for the slash of a path, which a key may not have."""
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class ConfigMapTooLargeError(ExpectedError, ValueError):
    """The files do not fit into one ConfigMap, even compressed."""

    exit_code = ExitCode.TOO_LARGE


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigMapContents:
    """The two maps of a ConfigMap, as JSON has them."""

    data: Mapping[str, str] = field(default_factory=dict)
    """Text in UTF-8, by key."""
    binary_data: Mapping[str, str] = field(default_factory=dict)
    """Base64, by key."""


def pack_files(files: Mapping[str, bytes]) -> ConfigMapContents:
    """Return the contents of a ConfigMap that holds these files, by path such as ``bundle/manifest.json``.

    Equal files give equal contents, byte for byte.

    Raises:
        DocumentError: a path cannot be a key.
        ConfigMapTooLargeError: the values would be larger than LIMIT_BYTES.
    """
    stored = {_key(path): content for path, content in files.items()}
    if _size(stored) > COMPRESS_ABOVE_BYTES:
        stored = dict(_compressed(key, content) for key, content in stored.items())
    if _size(stored) > LIMIT_BYTES:
        largest = max(stored, key=lambda key: len(stored[key]))
        raise ConfigMapTooLargeError(
            f"the files need {_size(stored):,} bytes even compressed, a ConfigMap holds {LIMIT_BYTES:,}; "
            f"the largest is {largest} with {len(stored[largest]):,}; hint: publish fewer or smaller files"
        )
    text = {key: content.decode() for key, content in sorted(stored.items()) if _is_text(content)}
    binary = {key: base64.b64encode(stored[key]).decode() for key in sorted(stored.keys() - text.keys())}
    return ConfigMapContents(data=text, binary_data=binary)


def unpack_files(
    contents: ConfigMapContents, *, where: str = "ConfigMap", limit_bytes: int = UNPACKED_LIMIT_BYTES
) -> dict[str, bytes]:
    """Return the files of a ConfigMap by path, decompressed to at most `limit_bytes` each.

    Raises DocumentError for a damaged or oversized value.
    """
    files: dict[str, bytes] = {key: text.encode() for key, text in contents.data.items()}
    for key, encoded in contents.binary_data.items():
        try:
            files[key] = base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise DocumentError(where, [f"binaryData.{key}: is not base64: {error}; hint: write it again"]) from error
    return {
        _path(key): decompressed(key, content, where=f"{where}: {key}", limit_bytes=limit_bytes)
        for key, content in sorted(files.items())
    }


def contents_of(config_map: Mapping[str, Any]) -> ConfigMapContents:
    """Return the contents of a ConfigMap as the API server's JSON has it."""
    return ConfigMapContents(data=config_map.get("data") or {}, binary_data=config_map.get("binaryData") or {})


def _key(path: str) -> str:
    key = path.replace("/", SEPARATOR)
    if SEPARATOR in path or path.endswith(COMPRESSED_SUFFIX):
        problem = f"holds {SEPARATOR} or ends with {COMPRESSED_SUFFIX}, which a ConfigMap's key has for other uses"
        raise DocumentError(path, [f"{problem}; hint: rename the file"])
    if not _KEY.fullmatch(key) or key.startswith(".."):
        raise DocumentError(
            path, ["a ConfigMap's key has 1 to 253 letters, digits, '-', '_' and '.'; hint: rename the file"]
        )
    return key


def _path(key: str) -> str:
    return key.removesuffix(COMPRESSED_SUFFIX).replace(SEPARATOR, "/")


def _compressed(key: str, content: bytes) -> tuple[str, bytes]:
    """Return the file compressed, or as it is where that gains nothing."""
    if len(content) <= ALWAYS_LEGIBLE_BYTES:
        return key, content
    smaller = gzip.compress(content, mtime=0)  # no time: equal files give equal bytes
    return (f"{key}{COMPRESSED_SUFFIX}", smaller) if len(smaller) < len(content) else (key, content)


def _is_text(content: bytes) -> bool:
    """Return whether a file is text that every YAML and JSON parser reads back unchanged."""
    try:
        lines = content.decode()
    except UnicodeDecodeError:
        return False
    return "".join(lines.split("\n")).replace("\t", "").isprintable()


def _size(stored: Mapping[str, bytes]) -> int:
    return sum(len(content) for content in stored.values())
