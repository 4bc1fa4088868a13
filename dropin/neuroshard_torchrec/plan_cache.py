"""A folder of plans by what was asked. A file that cannot be read or written is a warning, never an error."""

from pathlib import Path

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.atomic_file import write_whole

from neuroshard_torchrec.first_rank import logger_of
from neuroshard_torchrec.question import Question

logger = logger_of(__name__)


class PlanCache:
    """Plans that were made before, each for its own question and release alone.

    Args:
        folder: made with the first plan. None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, question: Question) -> Plan | None:
        """Return the plan of a question. None: there is none, or its file holds another one."""
        path = self._path(question)
        if path is None:
            return None
        try:
            if not path.exists():
                return None
            plan = Plan.read(path)
        except (DocumentError, OSError) as error:
            logger.warning("a cached plan is not used: %s", error)
            return None
        if plan.request != question.request:
            logger.warning("a cached plan is not used: %s: is the plan of another request", path)
            return None
        return plan

    def put(self, question: Question, plan: Plan) -> None:
        """Keep the plan of a question."""
        path = self._path(question)
        if path is None:
            return
        if question.release is None:
            logger.warning("the plan is not cached: neuroshard-operator is not installed, so its release is not known")
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, plan.to_json())
        except OSError as error:
            logger.warning("the plan is not cached: %s", error)

    def _path(self, question: Question) -> Path | None:
        return None if self._folder is None else self._folder / f"plan-{question.digest[:16]}.json"
