"""The jobs of the examples, and the paths of the fields that plain data sets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from neuroshard_api.job.training_job import KIND

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("[0-9][0-9]-*.yaml"))


def jobs_in(path: Path) -> list[dict[str, Any]]:
    """Return the jobs of a manifest as plain data."""
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return [document for document in documents if document["kind"] == KIND]


def given_paths(value: object, path: str = "") -> Iterator[str]:
    """Give the path of every field that plain data sets."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from given_paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from given_paths(inner, f"{path}[]")
