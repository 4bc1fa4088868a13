"""What a drift watch knows, next to the step report: a restart under the same plan goes on comparing with it."""

import logging
from pathlib import Path
from typing import ClassVar, Literal, Self

from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.drift_report import DriftChange
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.documents.step_report import RankTimes

from neuroshard_trainer.drift.data_watch import DataState
from neuroshard_trainer.drift.detector import DetectorState
from neuroshard_trainer.ranks.run_identity import RunIdentity

logger = logging.getLogger(__name__)


class DriftState(RunDocument):
    """``drift-state.json``: the reference of times, inputs, and data, and the detector."""

    schema_name: ClassVar[str] = "trainer-drift-state/v1"

    schema_version: Literal["trainer-drift-state/v1"] = "trainer-drift-state/v1"
    world_size: PositiveCount
    conditions: str
    """What else must be the same for steps to be comparable."""
    detector: DetectorState
    reference: tuple[RankTimes, ...] = ()
    """By rank. Empty: not known yet."""
    reference_first_step: Count | None = None
    """Number of its first step. None: not known."""
    inputs: InputStatistics | None = None
    """Reference of the inputs. None: not known yet."""
    data: DataState = DataState()
    named: tuple[DriftChange, ...] = ()
    """Causes of the slow-down that lasts. Empty: none was named."""

    @classmethod
    def kept(cls, file: Path) -> Self | None:
        """Return the state in a file; None: there is none. A damaged file is named in a warning."""
        if not file.exists():
            return None
        try:
            return cls.read(file)
        except DocumentError as error:
            logger.warning("%s; the reference of drift is learned from the next steps", error)
            return None

    def has_data_of(self, run: RunIdentity, *, conditions: str) -> bool:
        """Return whether a run's data are comparable with the state's, also under another plan."""
        return (self.source, self.conditions) == (run.source, conditions)

    def fits(self, run: RunIdentity, *, world_size: int, conditions: str) -> bool:
        """Return whether a run's steps are comparable with the state's."""
        is_same = (self.plan_sha256, self.world_size) == (run.plan_sha256, world_size)
        ranks = [times.rank for times in self.reference]
        return is_same and ranks in ([], list(range(world_size))) and self.has_data_of(run, conditions=conditions)
