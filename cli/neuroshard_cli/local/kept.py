"""Documents that a run keeps for decisions, in place of ConfigMaps: a folder for each, and an index of them."""

import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.stage_commands import (
    DRIFT_REPORT_FILE,
    HARDWARE_FILE,
    INPUT_STATISTICS_FILE,
    PROGRESS_FILE,
    STEP_REPORT_FILE,
)
from neuroshard_api.process.failures import CommandError
from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Change, Delete, Keep, Write
from neuroshard_decisions.observed.objects import ChildConfigMap, Meta
from neuroshard_decisions.observed.results import (
    MANIFEST_FILE,
    PLAN_FILE,
    WEIGHTS_FILE,
    PlanResult,
    ProfileSummary,
    ReportSummary,
    Unreadable,
    plan_summary,
    profile_summary,
    report_summary,
)

from neuroshard_cli.local.children import UID
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob

Document = PlanResult | ProfileSummary | ReportSummary | Unreadable

REPORTS = (DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE, PROGRESS_FILE, STEP_REPORT_FILE)
"""Files of a training that its decisions depend on."""
INDEX = "index.json"


class Kept:
    """The documents of one run.

    Args:
        folder: is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: dict[str, Any] = _recorded(folder / INDEX)
        self._documents: dict[str, Document] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether a document is kept."""
        return name in self._index

    def folder(self, name: str) -> Path:
        """Return the folder of a document's files."""
        return self._folder / name

    def put(
        self,
        name: str,
        files: Mapping[str, bytes] | Mapping[str, Path],
        *,
        role: str,
        now: datetime,
        labels: Mapping[str, str] | None = None,
        is_shared: bool = False,
    ) -> None:
        """Keep files, in the place of those that had the name. Raises CommandError.

        Args:
            name: of the document.
            files: contents, or files to copy, by the path in its folder.
            role: that decisions know it by.
            now: the present time.
            labels: for decisions. If unset: none.
            is_shared: whether the document is of the machine, and not of the run.
        """
        self.remove(name)
        try:
            for path, content in files.items():
                target = self.folder(name) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        except OSError as error:
            raise CommandError(f"{self.folder(name)}: cannot be written: {error.strerror}; hint: free space") from error
        entry = {"role": role, "labels": dict(labels or {}), "isShared": is_shared, "time": now.isoformat()}
        self._write({**self._index, name: entry})

    def do(self, action: Action, *, reports: Path, now: datetime) -> bool:
        """Do an action on documents; return whether it changed one. Those on processes are left to others.

        Args:
            action: of a pass.
            reports: folder of the training, whose files are those of its report.
            now: the present time.
        """
        match action:
            case Write(files=files):
                self.put(files.name, files.contents, role=files.role, labels=files.labels, now=now)
            case Keep(name=name) if name in self._index:
                return False
            case Keep(name=name, role=role, labels=labels, is_shared=is_shared):
                found = self._files(action.source) if action.source in self._index else files_of_reports(reports)
                self.put(name, found, role=role, labels=labels, is_shared=is_shared, now=now)
            case Change(kind="ConfigMap", name=name, labels=labels):
                return self._label(name, labels)
            case Delete(kind="ConfigMap", name=name):
                self.remove(name)
            case _:
                return False
        return True

    def _files(self, name: str) -> dict[str, Path]:
        folder = self.folder(name)
        return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def _label(self, name: str, labels: Mapping[str, str]) -> bool:
        """Label a document; return whether that changes it."""
        entry = self._index[name]
        after = {**entry["labels"], **labels}
        if after == entry["labels"]:
            return False
        self._write({**self._index, name: {**entry, "labels": after}})
        return True

    def remove(self, *removed: str) -> None:
        """Remove documents, those that are there."""
        self._write({name: entry for name, entry in self._index.items() if name not in removed})
        for name in removed:
            self._documents.pop(name, None)
            shutil.rmtree(self.folder(name), ignore_errors=True)

    def of_roles(self, *roles: str) -> list[str]:
        """Return the names of the documents of some roles."""
        return [name for name, entry in self._index.items() if entry["role"] in roles]

    def config_maps(self) -> Iterator[ChildConfigMap]:
        """Yield the documents as decisions see them."""
        for name, entry in self._index.items():
            if name not in self._documents:
                self._documents[name] = document_in(self.folder(name), entry["role"])
            document = self._documents[name]
            yield ChildConfigMap(
                meta=Meta(
                    name=name,
                    owner_uid="" if entry["isShared"] else UID,
                    labels=entry["labels"],
                    created=datetime.fromisoformat(entry["time"]),
                ),
                role=entry["role"],
                immutable=True,
                content_hash=document.hash if isinstance(document, PlanResult) else "",
                is_read=True,
                document=document,
            )

    def _write(self, index: Mapping[str, Any]) -> None:
        if index != self._index:
            self._index = dict(index)
            self._folder.mkdir(exist_ok=True)
            write_file(self._folder / INDEX, json.dumps(index, indent=1) + "\n")


def document_in(folder: Path, role: str) -> Document:
    """Return the summary of a document's files for decisions."""
    try:
        if role in {names.PLAN, names.PLANNER}:
            return plan_summary((folder / PLAN_FILE).read_bytes(), key=PLAN_FILE, where=str(folder))
        if role in {names.PROFILE, names.PROFILER, names.CALIBRATOR}:
            bundle = folder / BUNDLE_FOLDER
            paths = (bundle / MANIFEST_FILE, bundle / WEIGHTS_FILE, folder / HARDWARE_FILE)
            found = {path.name: path.read_bytes() for path in paths if path.exists()}
            return profile_summary(found, where=str(folder))
        files = {name: (folder / name).read_bytes() for name in REPORTS if (folder / name).exists()}
        return report_summary(files, sorted(files), where=str(folder))
    except (DocumentError, OSError) as error:
        return Unreadable(problem=str(error))


def files_of_profile(folder: Path) -> dict[str, Path]:
    """Return the files of a profile that plans are made with; empty where it has no cost models."""
    bundle = folder / BUNDLE_FOLDER
    paths = [path for path in (*sorted(bundle.glob("*.*")), folder / HARDWARE_FILE) if path.is_file()]
    return {str(path.relative_to(folder)): path for path in paths}


def files_of_reports(folder: Path) -> dict[str, Path]:
    """Return the reports in the folder of a training."""
    return {name: folder / name for name in REPORTS if (folder / name).exists()}


def reports_of(job: "DLRMTrainingJob", folder: Path) -> tuple[ChildConfigMap, ...]:
    """Return the reports in the folder of a job's training as decisions see them; none before it has written one."""
    if not files_of_reports(folder):
        return ()
    meta = Meta(name=names.report(job.metadata.name), owner_uid=UID)
    document = document_in(folder, names.WORKER)
    return (ChildConfigMap(meta=meta, role=names.WORKER, is_read=True, document=document),)


def _recorded(index: Path) -> dict[str, Any]:
    """Return the index; a damaged one counts as empty, so that what it names is made again."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
