"""Builders of documents about training: what its steps took, and what it was fed."""

from typing import Any

from neuroshard_api.documents.accuracy_comparison import Accuracy, AccuracyComparison, AccuracyPair
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.comparison_request import ComparisonRequest
from neuroshard_api.documents.drift_report import DriftChange, DriftReport, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_api.documents.model_evaluation import ModelEvaluation
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.preprocessing import (
    DensePreprocessing,
    LookupPreprocessing,
    Missing,
    Preprocessing,
)
from neuroshard_api.documents.step_report import MeasuredCollective, RankTimes
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.documents.training_comparison import PlanTimes, TrainingComparison
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.job.training import DataFormat
from support import builders


def drift_report(**fields: Any) -> DriftReport:
    """Return the report of two ranks, of which rank 1 became slower."""
    evidence = Evidence(part=StepPart.COMPUTE, rank=1, reference_ms=2.0, recent_ms=4.0)
    defaults = {
        "source": "simulated:test-80gb",
        "plan_sha256": "0" * 64,
        "last_step": 900,
        "reference_steps": 200,
        "reference": (builders.rank_times(0), builders.rank_times(1)),
        "recent": (builders.rank_times(0), builders.rank_times(1, step_ms=9.0)),
        "changes": (DriftChange(cause=SlowdownCause.DEVICE_SLOW, ranks=(1,), since_step=600, evidence=(evidence,)),),
    }
    return DriftReport(**{**defaults, **fields})


def input_statistics(**fields: Any) -> InputStatistics:
    """Return the statistics of one feature over ten batches."""
    feature = FeatureStatistics(
        feature="item", lookups_per_sample=20.5, distinct_rows_per_lookup=0.3, distinct_lists_per_sample=1.0
    )
    defaults = {
        "source": "simulated:test-80gb",
        "plan_sha256": "0" * 64,
        "first_step": 0,
        "last_step": 900,
        "num_batches": 10,
        "batch_size": 64,
        "counted_samples": 64,
        "features": (feature,),
    }
    return InputStatistics(**{**defaults, **fields})


def comparison_request(**fields: Any) -> ComparisonRequest:
    """Return a request for two plans."""
    defaults = {"plans": {"theirs": "a.json", "ours": "b.json"}, "rounds": 2, "steps_per_round": 1, "result": "c.json"}
    return ComparisonRequest(**{**defaults, **fields})


def accuracy_comparison(**fields: Any) -> AccuracyComparison:
    """Return one pair of trainings of equal accuracy."""
    accuracy = Accuracy(normalized_entropy=0.8, auc=0.75)
    defaults = {
        "device": "cpu",
        "world_size": 2,
        "steps": 100,
        "wire": WireTypes(forward=WireType.INT8),
        "pairs": (AccuracyPair(seed=0, exact=accuracy, narrow=accuracy),),
    }
    return AccuracyComparison(**{**defaults, **fields})


def training_comparison(**fields: Any) -> TrainingComparison:
    """Return the comparison of one plan with itself, over two rounds."""
    times = PlanTimes(
        step_ms=(5.0, 5.0),
        steps_per_second=200.0,
        interval=(190.0, 210.0),
        speedup=1.0,
        speedup_interval=(0.9, 1.1),
        final_loss=0.5,
        largest_loss_difference=0.0,
    )
    defaults = {"device": "CPU", "world_size": 2, "rounds": 2, "steps_per_round": 10, "plans": {"first": times}}
    return TrainingComparison(**{**defaults, **fields})


def slower_ranks(plan: Plan, factor: float) -> tuple[RankTimes, ...]:
    """Return steps whose parts all take `factor` times as long as a plan predicts."""
    return tuple(
        builders.rank_times(
            rank,
            forward_compute_ms=factor * cost.forward_compute_ms,
            backward_compute_ms=factor * cost.backward_compute_ms,
            collectives=tuple(
                MeasuredCollective(
                    kind=each.kind,
                    family=each.family,
                    forward_ms=factor * each.forward_ms,
                    backward_ms=factor * each.backward_ms,
                )
                for each in cost.collectives
            ),
        )
        for rank, cost in enumerate(plan.predicted.devices)
    )


def exported_model(**fields: Any) -> ExportedModel:
    """Return the description of an export of one dense feature and one table."""
    user = builders.table()
    table = {"name": "user", "numEmbeddings": 1000, "embeddingDim": 16, "poolingFactor": "3.5"}
    model = builders.job(model={"embeddingTables": [table]}).spec.model
    lookup = LookupPreprocessing(feature="user", table="user", num_rows=user.num_embeddings, id_rule=IdRule.EXACT)
    usual: dict[str, Any] = {
        "step": 100, "plan_sha256": "0" * 64, "num_dense_features": 1, "features": ("user",),
        "data_format": DataFormat.PARQUET, "model": model, "tables": (user,),
        "preprocessing": Preprocessing(
            dense=(DensePreprocessing(name="dense_0", missing=Missing.ERROR),), lookups=(lookup,)
        ),
    }  # fmt: skip
    return ExportedModel(**usual | fields)


def model_evaluation(**fields: Any) -> ModelEvaluation:
    """Return metrics of an export on data of both labels."""
    usual: dict[str, Any] = {
        "step": 100, "plan_sha256": "0" * 64, "tables": "FP32", "data": "day_1.tsv", "data_format": "CriteoTSV",
        "num_samples": 2000, "num_positive": 500, "loss": 0.5, "normalized_entropy": 0.9, "auc": 0.75,
        "auc_error": 2e-5, "calibration": 1.25,
    }  # fmt: skip
    return ModelEvaluation(**usual | fields)
