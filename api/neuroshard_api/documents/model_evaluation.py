"""Metrics of an exported model on data, as `neuroshard evaluate` computes them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Document


class ModelEvaluation(Document):
    """Metrics of one export on one data set; what the labels leave undefined is unset."""

    schema_name: ClassVar[str] = "model-evaluation/v1"

    schema_version: Literal["model-evaluation/v1"] = "model-evaluation/v1"
    step: Count
    """Steps of the checkpoint that was exported."""
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the plan file that the model was trained under."""
    tables: str
    """Element type of the tables that were looked up."""
    data: str
    """File, folder, pattern, or URL of the samples."""
    data_format: str
    """Format of the samples, in the words of spec.data.format."""
    num_samples: Count
    num_positive: Count
    """Samples of label 1."""
    loss: Annotated[float, Field(ge=0)]
    """Mean cross entropy in nats."""
    normalized_entropy: Annotated[float, Field(ge=0)] | None = None
    """Cross entropy over that of the mean label: lower is better, and 1 is as good as knowing the mean label alone. If
    unset: all labels are equal."""
    auc: Annotated[float, Field(ge=0, le=1)] | None = None
    """If unset: see no_auc."""
    auc_error: Annotated[float, Field(ge=0, le=1)] | None = None
    """Bound of the difference between ``auc`` and the AUC of the exact predictions. If unset: there is no AUC."""
    no_auc: str | None = None
    """Reason why there is no AUC. If unset: there is one."""
    calibration: Annotated[float, Field(ge=0)] | None = None
    """Mean prediction over mean label: above 1 the model predicts too many clicks. If unset: no label is 1."""
