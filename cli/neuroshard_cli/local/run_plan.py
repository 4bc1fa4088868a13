"""The plan of a run, put where its trainer and people find it; profile and plan are shown once each."""

from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.plan import any_plan
from neuroshard_api.job.status import Status
from neuroshard_api.lifecycle.restarts import reserve_note
from neuroshard_decisions.observed.results import PLAN_FILE

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.kept import Kept
from neuroshard_cli.local.progress_view import RunView, State
from neuroshard_cli.local.run_news import RunNews
from neuroshard_cli.local.run_page import write_plan_page
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan


class RunPlan:
    """Profile and plan of one run, as people see them.

    Args:
        directory: of the run.
        kept: documents of the run, with its plans.
        view: shows the stages.
        news: shows sentences once.
    """

    def __init__(self, directory: RunDirectory, kept: Kept, view: RunView, news: RunNews) -> None:
        self._directory = directory
        self._kept = kept
        self._view = view
        self._news = news
        self.has_profile = False
        """Whether people have seen where the cost models are from."""
        self._is_shown = False
        """Whether people have seen the plan."""
        self._is_planned = False
        """Whether this command has searched a plan."""
        self._paged: str | None = None
        """Hash of the plan that the page shows. None: this command has made none."""

    def in_force(self) -> "GivenPlan":
        """Return the plan that the run directory has now. Raises DocumentError."""
        return any_plan(read_data(self._directory.plan_file), where=str(self._directory.plan_file))

    def given(self, plan: "GivenPlan", where: str) -> None:
        """Show a plan that was given in place of both stages."""
        self.profile_ends("reused", "the plan is given")
        self._view.end("plan", "reused", f"{where}: {summary(plan)}")
        self._is_shown = True

    def profile_ends(self, state: State, note: str | None) -> None:
        """Show the source of the cost models."""
        self._view.end("profile", state, note)
        self.has_profile = True

    def show_profile(self, status: Status) -> None:
        """Show the source of the cost models, unless people have seen it."""
        if not self.has_profile:
            self.profile_ends("reused", None if status.profile is None else status.profile.source)

    def is_searched(self, note: str) -> None:
        """Show that a plan is searched, in the place of one that was shown."""
        self._view.begin("plan", note)
        self._is_planned, self._is_shown = True, False

    def place(self, status: Status, *, bundle_dir: Path | None) -> None:
        """Put the plan of a status in its place, if it is kept.

        Args:
            status: of the run.
            bundle_dir: cost models of the plan's page. None: it has nothing about other traffic.
        """
        plan, directory = status.plan, self._directory
        name = None if plan is None or plan.config_map_ref is None else plan.config_map_ref.name
        if plan is None or name is None or name not in self._kept:
            return
        self.show_profile(status)
        is_other = plan.hash != f"sha256:{file_digest(directory.plan_file)}"
        if is_other:
            write_file(directory.plan_file, (self._kept.folder(name) / PLAN_FILE).read_text(encoding="utf-8"))
        if is_other or plan.hash != self._paged:
            self._paged, found = plan.hash, self.in_force()
            write_plan_page(directory, found, bundle_dir)
            if status.replans:
                self._news.say(f"plan: {reserve_note(status.replans)}")
            if not self._is_shown:
                self._view.end("plan", "done" if self._is_planned else "reused", summary(found))
            self._is_shown = True


def summary(plan: "GivenPlan") -> str:
    """Return a plan in one line."""
    from neuroshard_report.batch import batch_texts
    from neuroshard_report.summary import unused_servers

    price = "without a price" if plan.predicted is None else f"predicted {plan.predicted.total_ms:.3f} ms"
    servers = plan.num_server_processes
    processes = "1 server process" if servers == 1 else f"{servers} server processes"
    served = "" if plan.servers is None else f", {len(plan.servers.tables)} on {processes}"
    unused = ""
    if plan.servers is None and plan.request.servers is not None:
        unused = f"; no embedding server is used, {unused_servers(plan)}"
    on_devices = "1 device" if plan.num_devices == 1 else f"{plan.num_devices} devices"
    batch = batch_texts(plan)
    chosen = "" if batch is None else f"; {batch[0]}"
    return f"{len(plan.tables)} tables on {on_devices}{served} by {plan.algorithm}, {price}{chosen}{unused}"
