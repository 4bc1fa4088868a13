"""What a sweep came to so far: its choice, and the metrics of its variants from the folders of their runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.hints import last_message

from neuroshard_cli.local.directory import MOVED_ASIDE, RunDirectory
from neuroshard_cli.local.measured import measured_in, progress_in

if TYPE_CHECKING:
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_dlrm.sweeps import SweepChoice, Way
    from neuroshard_dlrm.variant_sets import SweepJob
    from neuroshard_dlrm.variants import Variant
    from neuroshard_report.sweep import SweepView, SweepWay, VariantResult

    from neuroshard_cli.local.sweep_folder import SweepFolder


class SweepResults:
    """A sweep under way.

    Args:
        file: the job.
        variants: of it.
        choice: how they share the devices.
        folder: of the sweep.
        without_sets: why variants do not train together. None: they may.
    """

    def __init__(
        self,
        file: "JobFile",
        variants: "Sequence[Variant]",
        choice: "SweepChoice",
        folder: "SweepFolder",
        *,
        without_sets: str | None,
    ) -> None:
        self._file = file
        self._variants = variants
        self._choice = choice
        self._folder = folder
        self._without_sets = without_sets
        self._statuses: dict[str, int] = {}

    def end(self, name: str, status: int) -> None:
        """Note the exit status of a job's run."""
        self._statuses[name] = status

    def page(self) -> str:
        """Return the page as of now."""
        from neuroshard_report.html.sweep import render_sweep_html

        return render_sweep_html(self.view())

    def view(self) -> "SweepView":
        """Return the sweep as of now."""
        from neuroshard_report.sweep import SweepView

        choice = self._choice
        counts = [part.count for part in choice.parts]
        found = [count for count in counts if count is not None]
        return SweepView(
            name=self._file.job.metadata.name,
            num_devices=choice.room.num_devices,
            device_type=choice.device_type,
            ways=tuple(map(self._way, choice.ways)),
            results=tuple(
                self._result(job, size, number)
                for job, (_, size) in zip(choice.jobs, sorted(choice.sizes.items()), strict=True)
                for number in job.variants
            ),
            sources=tuple(dict.fromkeys(count.source for count in found if count.source is not None)),
            counts_dense=all(count.plan is not None and count.plan.dense_ms is not None for count in found),
            warnings=tuple(dict.fromkeys(text for count in found for text in count.warnings)),
            without_sets=self._without_sets,
        )

    def _way(self, way: "Way") -> "SweepWay":
        from neuroshard_report.sweep import SweepWay

        count, division = len(way.jobs), way.division
        assert way.size is not None or division is not None, "parts that differ are those of a division"
        sizes = [way.size or 0] * count if division is None else [division.sizes[place] for place in range(count)]
        return SweepWay(
            sizes=tuple(sizes),
            together=max(len(job.variants) for job in way.jobs),
            total_ms=None if division is None else division.total,
            gain=self._choice.gain(way),
            memory_share=way.memory_share,
            problem=way.problem,
            is_chosen=way is self._choice.chosen,
        )

    def _result(self, job: "SweepJob", size: int, number: int) -> "VariantResult":
        """Return the result of a variant.

        Args:
            job: its own, or that of its set.
            size: devices of the job.
            number: of the variant.
        """
        from neuroshard_dlrm.variants import short_names, value_text
        from neuroshard_report.sweep import VariantResult, diverged_text

        variant, folder = self._variants[number], self._folder
        paths = list(dict.fromkeys(path for each in self._variants for path in each.settings))
        names = short_names(paths)
        values = {path: value_text(value) for path, value in variant.settings.items()}
        directory, status = folder.run_directory(job.name), self._statuses.get(job.name)
        progress, own_name = progress_in(directory), job.variant_name(number)
        states: dict[int | None, str] = {None: "waiting", ExitCode.OK: "done", ExitCode.INTERRUPTED: "interrupted"}
        state = states.get(status, "failed")
        problem = failure_text(folder.runs, job.name) if state == "failed" else None
        diverged = None if progress is None else (progress.diverged or {}).get(own_name or "")
        if state == "done" and diverged is not None:
            state, problem = "diverged", diverged_text(diverged)
        bare = VariantResult(
            job=job.name,
            variant=own_name,
            number=number,
            settings={names[path]: values.get(path, "") for path in paths},
            state=state,
            num_devices=size,
            problem=problem,
        )
        if progress is not None and not _is_of(progress, own_name):
            return bare
        metrics = metrics_of(progress, own_name)
        return replace(
            bare,
            step=None if progress is None else progress.step,
            normalized_entropy=metrics.get("normalized_entropy"),
            auc=metrics.get("auc"),
            loss=metrics.get("loss"),
            seconds=training_seconds(directory),
            samples_per_second=samples_per_second(directory),
            page=str(directory.run_report.relative_to(folder.path.absolute()))
            if directory.run_report.exists()
            else None,
        )


def _is_of(progress: "TrainingProgress", variant: str | None) -> bool:
    """Return whether a training is of the variant; an earlier choice may have left that of others in the directory.

    Args:
        progress: of the training.
        variant: its name in its set. None: it trains alone.
    """
    from neuroshard_api.documents.progress import by_variant

    names = by_variant(progress.numbers)
    return not names if variant is None else variant in names


def failure_text(base: RunDirectory, name: str) -> str:
    """Return the last message of a variant's run."""
    text = base.log(name).read_text(encoding="utf-8", errors="replace")
    return last_message(text.splitlines()).removeprefix("error: ")


def samples_per_second(directory: RunDirectory) -> float | None:
    """Return the speed of a run's training, by its median step. None: it is not known."""
    from neuroshard_api.documents.document import DocumentError

    try:
        steps = measured_in(directory).steps
    except DocumentError:
        return None
    return None if steps is None else steps.samples_per_second


def training_seconds(directory: RunDirectory) -> float | None:
    """Return the time that a run's training stage took, over all its starts. None: it was never begun.

    An earlier choice may have had another set in the same directory, whose training was moved aside.
    """
    from datetime import datetime

    of_training = (each for each in directory.course if each["stage"] == "train" and each["outcome"] != MOVED_ASIDE)
    spans = [each for each in of_training if each["end"]]
    times = [datetime.fromisoformat(each["end"]) - datetime.fromisoformat(each["begin"]) for each in spans]
    return sum(each.total_seconds() for each in times) if times else None


def metrics_of(progress: "TrainingProgress | None", variant: str | None) -> dict[str, float]:
    """Return the finite metrics of a job's model, or of one of its variants."""
    from neuroshard_api.documents.progress import by_variant, of_model

    if progress is None:
        return {}
    found = of_model(progress.metrics) if variant is None else by_variant(progress.metrics).get(variant, {})
    return {name: value for name, value in found.items() if math.isfinite(value)}
