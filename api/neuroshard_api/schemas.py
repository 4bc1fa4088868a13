"""JSON schemas of all documents, for editors: ``python -m neuroshard_api.schemas DIRECTORY``."""

import json
import sys
from pathlib import Path

from neuroshard_api.documents.accuracy_comparison import AccuracyComparison
from neuroshard_api.documents.batch_choice import DenseProfiles
from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.comparison_request import ComparisonRequest
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.document import Document
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.model_evaluation import ModelEvaluation
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.session_clustering import SessionClustering
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import Topology
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_api.job.exported_model import ExportedModel

DOCUMENTS: tuple[type[Document], ...] = (
    TableSet,
    Topology,
    Constraints,
    PlanRequest,
    DenseProfile,
    DenseProfiles,
    BundleManifest,
    GivenPlan,
    ProfileRecord,
    StepReport,
    DriftReport,
    InputStatistics,
    TorchRecPlan,
    Hardware,
    TrainingProgress,
    TrainingComparison,
    AccuracyComparison,
    ComparisonRequest,
    SessionClustering,
    ExportedModel,
    ModelEvaluation,
)


def schema_text(document: type[Document]) -> str:
    """Return a document's JSON schema: the same text for the same release, keys sorted.

    A schema cannot say everything that reading a document checks, such as unique table names.
    """
    schema = document.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["required"] = ["schema_version", *schema.get("required", [])]
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def schema_file_name(document: type[Document]) -> str:
    """Return the name of a document's schema file: ``table-set/v1`` is in ``table-set-v1.schema.json``."""
    return document.schema_name.replace("/", "-") + ".schema.json"


def write_schemas(directory: Path) -> None:
    """Write one file per document; an existing file of the same name is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    for document in DOCUMENTS:
        (directory / schema_file_name(document)).write_text(schema_text(document), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and one argument
        sys.exit("usage: python -m neuroshard_api.schemas DIRECTORY")
    write_schemas(Path(sys.argv[1]))
