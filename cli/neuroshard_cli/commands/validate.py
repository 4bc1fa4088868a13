"""``neuroshard validate``: the problems of files."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import print_document
from neuroshard_cli.shared.request_options import JsonOption


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a file is, and what is wrong with it."""

    file: str
    kind: str | None
    """Schema name of the document, or the apiVersion and kind of a job. None: not recognized."""
    problems: tuple[str, ...]


def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Job files, documents, record files, bundle directories.")
    ],
    json: JsonOption = False,
) -> None:
    """Check files, and list every problem of every file.

    Documents are compared with their schemas, plans also with their own tables, devices, and limits, and jobs with the
    rules of the custom resource and the tables of the ConfigMaps in their file.
    """
    findings = [examine(path) for path in files]
    if json:
        print_document(json_format.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    else:
        for finding in findings:
            _tell(finding)
    if any(finding.problems for finding in findings):
        raise typer.Exit(ExitCode.INVALID_INPUT)


def examine(path: Path) -> Finding:
    """Recognize a document by its suffix, its schema_version, or its kind, and gather its problems."""
    from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, read_data
    from neuroshard_api.documents.foreign_tables import are_foreign_tables, table_set_of_data
    from neuroshard_api.job.job_file import is_job_file
    from neuroshard_costs.errors import BundleError

    suffix = Path(path.name.removesuffix(COMPRESSED_SUFFIX)).suffix.lower()
    kind: str | None = None
    problems: Sequence[str]
    try:
        if path.is_dir():
            kind = "bundle"
            problems = _bundle_problems(path)
        elif suffix == ".csv":
            kind = "table-set/v1"
            problems = _csv_problems(path)
        elif suffix == ".jsonl":
            kind = "profile-record/v1"
            problems = _record_problems(path)
        elif is_job_file(path):
            kind = _job_kind()
            problems = _job_problems(path)
        else:
            raw = read_data(path)
            if are_foreign_tables(raw):
                kind, problems = "table-set/v1", []
                table_set_of_data(raw, where=str(path), name=path.stem)
            else:
                kind, problems = _document_problems(path, raw)
    except DocumentError as error:
        problems = error.problems
    except BundleError as error:
        problems = [str(error)]
    return Finding(file=str(path), kind=kind, problems=tuple(problems))


def _tell(finding: Finding) -> None:
    if not finding.problems:
        print_document(f"{finding.file}: ok ({finding.kind})\n")
    for problem in finding.problems:
        say(f"{finding.file}: {problem.removeprefix(f'{finding.file}: ')}")


def _bundle_problems(path: Path) -> list[str]:
    from neuroshard_costs.bundle import load_bundle

    load_bundle(path)
    return []


def _csv_problems(path: Path) -> list[str]:
    from neuroshard_api.documents.table_files import read_table_set

    read_table_set(path)
    return []


def _record_problems(path: Path) -> list[str]:
    from neuroshard_api.documents.document import DocumentError, read_text
    from neuroshard_api.documents.records import ProfileRecord

    problems = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            try:
                record = ProfileRecord.from_json(line)
                problems += [
                    f"line {number}: {field}: is missing, and the record does not say that its sample failed"
                    "; hint: measure the sample again"
                    for field in record.missing_times
                ]
            except DocumentError as error:
                problems += [f"line {number}: {problem}" for problem in error.problems]
    return problems


def _job_kind() -> str:
    from neuroshard_api.job.training_job import API_VERSION, KIND

    return f"{API_VERSION} {KIND}"


def _job_problems(path: Path) -> list[str]:
    """Return the problems of the tables that a job file has elsewhere. Raises DocumentError with all others."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.job.job_file import read_job_file

    file = read_job_file(path)
    if file.has_tables:
        try:
            file.tables()
        except DocumentError as error:
            return [f"{error.where.removeprefix(f'{path}: ')}: {problem}" for problem in error.problems]
    return []


def _document_problems(path: Path, raw: object) -> tuple[str | None, Sequence[str]]:
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.documents.plan import GivenPlan, any_plan
    from neuroshard_planner.plans.checks import plan_problems

    if not isinstance(raw, dict):
        return None, ["must hold a mapping with a schema_version, or with the kind of a job"]
    from neuroshard_api.schemas import DOCUMENTS

    version = raw.get("schema_version")
    if version is None and not raw.keys().isdisjoint({"apiVersion", "kind"}):
        return _job_kind(), _job_problems(path)
    kind = next((kind for kind in DOCUMENTS if _family(kind.schema_name) == _family(version)), None)
    if kind is None:
        found = "is missing" if version is None else f"is {version!r}, which is not known"
        return None, [f"schema_version: {found}; hint: give one of {', '.join(kind.schema_name for kind in DOCUMENTS)}"]
    try:
        if kind is GivenPlan:
            return kind.schema_name, plan_problems(any_plan(raw, where=str(path)))
        kind.from_data(raw, where=str(path))
    except DocumentError as error:
        return kind.schema_name, error.problems
    return kind.schema_name, []


def _family(version: object) -> str:
    """Return a document's kind without its version, so that another version is named as such."""
    return str(version).partition("/")[0]
