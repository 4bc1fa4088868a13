"""The training in a run directory: what it depends on, whether it is finished, and whether it can be continued."""

from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.inputs import data_files, digest, training_facts, versions
from neuroshard_cli.local.kept import files_of_reports

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.training_job import DLRMTrainingJob

_STAGE = "train"
_OF_OTHER_STAGES = {"profiler", "planner", "rendezvous"}
"""Fields of spec.experimental that change no training. The plan that they lead to counts by itself."""


class RunTraining:
    """The training of one run.

    Args:
        directory: of the run.
        job: that trains.
        tables: as the job gives them.
        data_dir: where relative paths of spec.data begin.
    """

    def __init__(self, directory: RunDirectory, job: "DLRMTrainingJob", tables: "TableSet", data_dir: Path) -> None:
        self._directory = directory
        self._job = job
        self._tables = tables
        self._data_dir = data_dir

    @property
    def ready_file(self) -> Path:
        """File that NeuroShard's trainer makes once all of its processes train."""
        return self._directory.train_dir / "ready"

    @property
    def is_ready(self) -> bool:
        """Whether the workers train; one's own trainer does from its start on."""
        return bool(self._job.spec.trainer.command) or self.ready_file.exists()

    @property
    def is_finished(self) -> bool:
        """Whether it was finished under the plan that the folder has, from what the job says now."""
        return self._directory.is_finished(_STAGE, self._inputs)

    def move_another_aside(self) -> str:
        """Move a training aside that this one cannot continue; return a sentence on it, or nothing."""
        aside, others = self._directory.keep_facts(self._directory.train_dir, self._facts)
        return f"an earlier training was moved to {aside}: it {'; it '.join(others)}" if aside else ""

    def prepare(self) -> None:
        """Make the folder that an attempt trains in."""
        self._directory.train_dir.mkdir(exist_ok=True)
        self.ready_file.unlink(missing_ok=True)

    def finish(self) -> None:
        """Record that it is finished."""
        self._directory.finish(_STAGE, self._inputs, list(files_of_reports(self._directory.train_dir).values()))

    @property
    def _facts(self) -> dict[str, str]:
        data = self._job.spec.data
        files = [] if data.path is None else data_files(self._data_dir, data.path)
        return training_facts(self._job, self._tables, files)

    @property
    def _inputs(self) -> str:
        spec = self._job.spec
        identity = digest([self._tables.to_json(), spec.model.model_dump_json(), *self._facts.values()])
        return digest(
            [
                identity,
                self._directory.plan_file.read_text(encoding="utf-8"),
                spec.training.model_dump_json(),
                spec.checkpoint.model_dump_json(),
                spec.experimental.model_dump_json(exclude=_OF_OTHER_STAGES),
                spec.trainer.model_dump_json(),
                *versions(),
            ]
        )
