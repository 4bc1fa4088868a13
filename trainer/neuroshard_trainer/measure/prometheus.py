"""Step times for Prometheus, served by rank 0 next to the report file. Needs prometheus-client."""

from collections.abc import Callable
from pathlib import Path

from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.process.errors import InputError, MissingPackageError

from neuroshard_trainer.files import write_file

_PARTS = [name for name in RankTimes.model_fields if name.endswith("_ms")]
MS_PER_SECOND = 1000.0


def prometheus_writer(report_file: Path, port: int) -> Callable[[StepReport], None]:
    """Serve /metrics, and return what takes each report: it is written to the file and shown there.

    Raises:
        InputError: the port is taken.
        MissingPackageError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingPackageError(
            f"--metrics-port needs prometheus-client ({error}); hint: `pip install prometheus-client`"
        ) from error
    registry = CollectorRegistry()
    seconds = Gauge(
        "neuroshard_step_seconds",
        "Rolling median of a part of a training step",
        ["rank", "part"],
        registry=registry,
    )
    active: Gauge | None = None
    steps = Gauge("neuroshard_training_steps", "Training steps done", registry=registry)
    try:
        start_http_server(port, registry=registry)
    except OSError as error:
        raise InputError(
            f"--metrics-port: port {port} cannot be served ({error.strerror}); hint: name another"
        ) from error

    def write(report: StepReport) -> None:
        nonlocal active
        for times in report.ranks:
            for part in _PARTS:
                ms = getattr(times, part)
                if ms is not None:
                    seconds.labels(str(times.rank), part.removesuffix("_ms")).set(ms / MS_PER_SECOND)
        if report.communication is not None:
            active = active or Gauge(
                "neuroshard_compression_active",
                "1 while pooled embeddings travel in narrow types, 0 while the guard has suspended them",
                registry=registry,
            )
            active.set(float(report.communication.is_encoded))
        steps.set(report.first_step + report.num_steps)
        write_file(report_file, report.to_json())

    return write
