"""The folder of one run: where each stage's files are, and from which inputs they were made. Starts nothing."""

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard_api.job.stage_commands import TRIAL_FOLDER
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.status import Status

STATE_FILE = "state.json"
LOCK_FILE = ".lock"
COURSE = "course"
"""Key of the state: begin, end, and outcome of each stage's work."""
MAX_COURSE = 100
MOVED_ASIDE = "moved aside"
"""Outcome of work on a training that another one has replaced."""


class RunDirectory:
    """Files of one run.

        job.json tables.json         what is run, as the stages read it
        profile/                     the profiler's: records/, bundle/, hardware.json
        request.json dense.json plan.json plan.html
        train/                       the trainer's: checkpoints/, progress.json, step-report.json; trial/ has that of
                                     the steps under the plan before the training
        logs/<stage>.log             what the stage's processes printed; train.1.log is of the attempt before restart 1
        state.json                   what is finished, and from which inputs
        status.json                  restarts, the last failure, further plans, as in a job's status
        result.json run.html         predicted, baseline and measured cost, metrics
        approved-plan                name of the plan that `neuroshard approve` has approved
        candidate.json candidate-request.json   a further plan for changed inputs
        kept/                        documents that decisions are made from

    Args:
        path: is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.job_file = self.path / "job.json"
        self.tables_file = self.path / "tables.json"
        self.profile_dir = self.path / "profile"
        self.request_file = self.path / "request.json"
        self.dense_file = self.path / "dense.json"
        self.plan_file = self.path / "plan.json"
        self.plan_report = self.path / "plan.html"
        self.run_report = self.path / "run.html"
        self.train_dir = self.path / "train"
        self.trial_dir = self.train_dir / TRIAL_FOLDER
        self.result_file = self.path / "result.json"
        self.candidate_file = self.path / "candidate.json"
        self.status_file = self.path / "status.json"
        self.approved_file = self.path / "approved-plan"
        self.candidate_request_file = self.path / "candidate-request.json"

    def log(self, stage: str) -> Path:
        """Return the path of the log of a stage's processes."""
        return self.path / "logs" / f"{stage}.log"

    def with_log_kept(self, stage: str, number: int, message: str) -> str:
        """Keep the log of a stage that runs again under a name of its own; return the message with that name."""
        log = self.log(stage)
        kept = log.with_name(f"{stage}.{number}.log")
        if log.exists():
            log.replace(kept)
        return message.replace(str(log), str(kept))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep it to this process. Raises CommandError where another one works in it."""
        try:
            self.log("any").parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CommandError(f"{self.path}: is not a folder; hint: give another --run-dir") from error
        with (self.path / LOCK_FILE).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(
                    f"{self.path}: another `neuroshard run` works here; hint: wait for it, or give another --run-dir"
                ) from error
            yield

    @property
    def is_in_use(self) -> bool:
        """Whether a run works in the folder now."""
        try:
            with (self.path / LOCK_FILE).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def approved_plan(self) -> str:
        """Name of the plan that the user has approved; empty where there is none."""
        try:
            return self.approved_file.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def is_finished(self, stage: str, inputs: str) -> bool:
        """Return whether a stage was finished from these inputs and its files are as it left them."""
        record = self._state().get(stage)
        if not isinstance(record, dict) or record.get("inputs") != inputs:
            return False
        outputs = record.get("outputs", {})
        return isinstance(outputs, dict) and outputs == self._digests(list(outputs))

    def recorded_status(self) -> "tuple[Status, list[str]]":
        """Return the status of an earlier command, and the names of its fields that cannot be read."""
        from neuroshard_decisions.status import read_status

        try:
            raw = json.loads(self.status_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raw = {}
        except (OSError, ValueError):
            raw = None
        if not isinstance(raw, dict):
            return read_status({}), ["its text"]
        status = read_status(raw)
        read = json.loads(status.model_dump_json(by_alias=True, exclude_none=True))
        return status, [name for name in raw if name not in read]

    def begun(self, stage: str) -> None:
        """Record that a stage's work begins; work whose end nothing could record is forgotten."""
        known = [each for each in self.course if each["end"]][-MAX_COURSE:]
        entry = {"stage": stage, "begin": datetime.now(UTC).isoformat(), "end": None, "outcome": ""}
        self._remember(COURSE, [*known, entry])

    def ended(self, outcome: str) -> None:
        """Record that the work that began last ends, and how: done, failed, or interrupted."""
        *known, last = self.course
        self._remember(COURSE, [*known, {**last, "end": datetime.now(UTC).isoformat(), "outcome": outcome}])

    @property
    def course(self) -> list[Mapping[str, Any]]:
        """Begin, end, and outcome of each stage's work, in order."""
        found = self._state().get(COURSE, [])
        return found if isinstance(found, list) else []

    def finish(self, stage: str, inputs: str, outputs: Sequence[Path]) -> None:
        """Remember that a stage made these files from these inputs."""
        names = [str(path.relative_to(self.path)) for path in outputs]
        self._remember(stage, {"inputs": inputs, "outputs": self._digests(names)})

    def keep_for(self, folder: Path, purpose: str) -> Path | None:
        """Let a folder serve one purpose only: what it holds for another one is moved aside.

        Returns where to; None: the folder stays as it is.
        """
        if self._state().get(_purpose_of(folder)) == purpose:
            return None
        self._remember(_purpose_of(folder), purpose)
        return _moved_aside(folder)

    def keep_facts(self, folder: Path, facts: Mapping[str, str]) -> tuple[Path | None, tuple[str, ...]]:
        """Let a folder serve one training only: what it holds of one that cannot be continued is moved aside.

        Returns where to, or None where the folder stays as it is, and a phrase for each fact that differs. Where an
        earlier release recorded no facts, the trainer judges. The course shows what was done for the other training.
        """
        from neuroshard_api.job.continuation import other_facts

        before = self._state().get(_purpose_of(folder))
        self._remember(_purpose_of(folder), dict(facts))
        others = other_facts(before, facts) if isinstance(before, dict) else ()
        if not others:
            return None, ()
        course = [{**each, "outcome": MOVED_ASIDE} if each["stage"] == folder.name else each for each in self.course]
        self._remember(COURSE, course)
        return _moved_aside(folder), others

    def clear(self, folder: Path) -> None:
        """Remove a stage's folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def _remember(self, key: str, value: object) -> None:
        write_file(self.path / STATE_FILE, json.dumps({**self._state(), key: value}, indent=1) + "\n")

    def _state(self) -> Mapping[str, object]:
        """Return the recorded state; a damaged file counts as empty, so that all stages are run again."""
        try:
            state = json.loads((self.path / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _digests(self, names: Sequence[str]) -> dict[str, str | None]:
        return {name: file_digest(self.path / name) for name in names}


def _purpose_of(folder: Path) -> str:
    """Return the key of a folder's purpose in the state."""
    return f"purpose of {folder.name}"


def _moved_aside(folder: Path) -> Path | None:
    """Give a folder the next free number behind its name, and return its new path. None: there is none."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file; None: it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
