"""The folder of a sweep: a job file for each variant, which ``kubectl apply`` takes, the page, and the runs of here."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_dlrm.variants import Variant

RUNS = "runs"
_RECORD = "sweep.json"
_SETTINGS = "settings"
_FIELDS = ("embeddingLearningRate", "denseLearningRate", "learningRateSchedule", "gradientClipNorm", "precision")
"""Of spec.training: a run resumes with others of these."""


class SweepFolder:
    """Files of one sweep.

        JOB-00.yaml JOB-01.yaml      a job for each variant, or for each set of them, by its first one
        sweep.html                   the ways to divide the devices, and the variants, best first
        runs/sweep.json              the variants that the folder is for
        runs/JOB-00/                 run directory of a job that was trained here
        runs/logs/JOB-00.log         what its run printed
        runs/profile/                measured cost models of this machine

    Args:
        path: is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.page = path / "sweep.html"
        self.runs = RunDirectory(path / RUNS)
        self._record = self.runs.path / _RECORD

    def require_for(self, variants: "Sequence[Variant]") -> None:
        """Do nothing if the folder is new, or of these variants. Raises CommandError."""
        if self.path.exists() and not self.path.is_dir():
            raise CommandError(f"--out: {self.path}: is a file; hint: give the path of a folder")
        if self._record.exists():
            self._require_same(_read(self._record), _recorded(variants))
        elif self.path.exists() and any(each.name != RUNS for each in self.path.iterdir()):
            raise CommandError(
                f"--out: {self.path}: has other files, which `kubectl apply` might take for jobs of the sweep"
                "; hint: give a new or empty folder"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--out: {self.path}: cannot be made: {error.strerror}; hint: choose another") from error

    def _require_same(self, before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> None:
        """Do nothing if the recorded variants are these. Raises CommandError.

        Runs resume at other learning rates, so that finished ones would have the metrics of what the job was before.
        """
        from neuroshard_api.job.continuation import other_facts

        if before.keys() == now.keys() and all(before[name].get(_SETTINGS) == now[name][_SETTINGS] for name in now):
            begun = [name for name in now if self.run_directory(name).path.exists()]
            others = [f"{name} {phrase}" for name in begun for phrase in other_facts(before[name], now[name])]
            if not others:
                return
            what = f"runs of another job ({others[0]}), which would be mixed with those of this one"
        else:
            what = "a sweep of other variants, whose runs would be mixed with these"
        raise CommandError(f"--out: {self.path}: has {what}; hint: give another folder, or remove this one")

    def take(self, variants: "Sequence[Variant]") -> None:
        """Let the folder be of these variants from now on."""
        write_file(self._record, json.dumps(_recorded(variants), indent=1) + "\n")

    def keep_jobs(self, names: Sequence[str], *, of: Sequence[str]) -> None:
        """Remove the files of jobs that an earlier choice had and this one has not.

        Args:
            names: of this choice.
            of: of all variants.
        """
        for name in sorted({*of} - {*names}):
            self.job_file(name).unlink(missing_ok=True)

    def job_file(self, name: str) -> Path:
        """Return the file of a variant's job."""
        return self.path / f"{name}.yaml"

    def run_directory(self, name: str) -> RunDirectory:
        """Return the run directory of a variant."""
        return RunDirectory(self.runs.path / name)

    def write_job(self, file: "JobFile") -> Path:
        """Write a variant's job, and the ConfigMaps that it names; return the path."""
        metadata = file.job.metadata
        documents: list[Mapping[str, Any]] = [file.document, *file.config_maps.values()]
        text = yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
        path = self.job_file(metadata.name)
        write_file(path, text)
        return path


def _recorded(variants: "Sequence[Variant]") -> dict[str, dict[str, str]]:
    """Return the settings of each variant, and what else decides its metrics and may change in a run's folder."""
    found = {}
    for variant in variants:
        spec = variant.file.job.spec
        training = spec.training.model_dump(mode="json", by_alias=True)
        facts = {f"spec.training.{name}": training[name] for name in _FIELDS}
        facts["samples of a step"] = spec.model.samples_per_device * spec.trainer.world_size
        texts = {name: json.dumps(value) for name, value in facts.items()}
        found[variant.name] = {_SETTINGS: variant.text, **texts}
    return found


def _read(record: Path) -> dict[str, dict[str, str]]:
    """Return the recorded variants; a damaged record is of none."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())
    return found if is_whole else {}
