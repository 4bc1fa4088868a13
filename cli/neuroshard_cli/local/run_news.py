"""Sentences about a run that stay on the screen: events, what it waits for, and the state of further plans."""

from neuroshard_api.job.status import Status
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import ConditionType, Reason

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.progress_view import RunView

_TOLD = {
    EventReason.CHILD_REPAIRED,
    EventReason.DRIFT_DETECTED,
    EventReason.COMPRESSION_SUSPENDED,
    EventReason.DATA_ANOMALY,
    EventReason.SLOW_NODE,
}
"""Events that people see as they are."""


class RunNews:
    """Shows each sentence once.

    Args:
        directory: of the run.
        view: shows them.
    """

    def __init__(self, directory: RunDirectory, view: RunView) -> None:
        self._directory = directory
        self._view = view
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Say a sentence, unless it was shown before."""
        if sentence not in self._said:
            self._view.say(sentence)
        self._said.add(sentence)

    def tell(self, event: Event, status: Status) -> None:
        """Show an event, where people should know of it."""
        message = event.message
        if event.reason is EventReason.WORKERS_RESTARTED:
            message = self._directory.with_log_kept("train", status.restarts or 0, message)
            self._view.say(f"train: {message}")
        elif event.reason is EventReason.PLAN_REPLACED:
            self._view.say(f"train: restarts under another plan: {message}")
        elif event.reason in _TOLD:
            self._view.say(message)

    def tell_status(self, status: Status) -> None:
        """Show the approval or the pause that the run waits for, and the state of further plans."""
        message = status.message or ""
        if status.reason == Reason.WAITING_FOR_APPROVAL:
            self.say(f"train: {message}")
        elif status.reason == Reason.WAITING_TO_RESTART:
            self._view.note("train", message)
        for found in status.conditions:
            if found.type != ConditionType.PLAN_CURRENT or found.reason == Reason.PLAN_REPLACED:
                continue
            news = f"{found.reason}: {found.message}"
            candidate = None if status.replanning is None else status.replanning.candidate
            if found.reason == Reason.CANDIDATE_PLANNING and candidate is not None:
                news = f"inputs drifted since step {candidate.since_step:,}; another plan is made"
            elif found.reason == Reason.CANDIDATE_FAILED:
                news = f"{news}; its log is {self._directory.log('replan')}"
            self.say(news)
