"""The base of the documents that a run of the trainer writes: where the numbers come from, the plan, and the run."""

from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.bundle import Source
from neuroshard_api.documents.document import Document


class RunDocument(Document):
    """A document of one run under one plan."""

    schema_version: str
    source: Source
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the plan file that the ranks trained under, decompressed."""
    run_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """torchrun's id of the run that wrote it; a restart on the same folder has another one. If unset: not known."""
