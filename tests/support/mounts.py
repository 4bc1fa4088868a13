"""Files as a pod sees them in a volume of the ConfigMap that holds them."""

import base64
from collections.abc import Mapping
from pathlib import Path

from neuroshard_api.documents.config_map import pack_files


def mounted(files: Mapping[str, bytes], folder: Path) -> Path:
    """Return the folder of such a volume: one file for each key, large ones compressed."""
    contents = pack_files(files)
    folder.mkdir()
    for key, text in contents.data.items():
        (folder / key).write_text(text, encoding="utf-8")
    for key, encoded in contents.binary_data.items():
        (folder / key).write_bytes(base64.b64decode(encoded))
    return folder
