"""``model.json`` of an export: the model, what it was trained on, and the way from raw rows to its inputs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Document
from neuroshard_api.documents.preprocessing import Preprocessing
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import DataFormat


class ExportedModel(Document):
    """What a server must know to call an exported model, and what it takes to build it again."""

    schema_name: ClassVar[str] = "exported-model/v2"

    schema_version: Literal["exported-model/v2"] = "exported-model/v2"
    step: Count
    """Steps of the checkpoint."""
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the plan file that it was trained under."""
    num_dense_features: Count
    features: tuple[str, ...]
    """Keys of the lookups, in the order of training."""
    quantized_type: Literal["INT8", "INT4", "FP16"] | None = None
    """Element type of the tables in ``quantized.pt``. If unset: there is no such file."""
    data_format: DataFormat
    """Format of the data that it was trained on."""
    dataset: str | None = None
    """Class of the samples of the format Dataset, as package.module:Class."""
    label_column: str | None = None
    """Column or array of the label, in formats that name it. If unset: label."""
    preprocessing: Preprocessing
    """The way from raw rows to the inputs of the model, as in training."""
    model: Model
    """spec.model of the job."""
    tables: Annotated[tuple[Table, ...], Field(min_length=1)]
    """Tables of the plan, with the statistics and the id rules of the job."""
