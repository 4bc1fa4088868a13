"""Sets of a sweep: variants that one trainer trains together, as one job with ``spec.variants``.

A set's job has the name of its first variant. Equal sets are priced once: for that their variants are named by their
place in the set, and in the job by their number in the sweep.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.settings import with_settings
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import without_hint

from neuroshard_dlrm.variants import WIDTHS, Variant, with_metadata

_OWN: Final = {
    **{
        f"spec.model.{name}": ("model", name)
        for name in ("architecture", "denseArchLayerSizes", "overArchLayerSizes", "crossNetwork", "wukong")
    },
    **{
        f"spec.training.{name}": ("training", name)
        for name in ("embeddingLearningRate", "denseLearningRate", "gradientClipNorm", "seed")
    },
    WIDTHS: ("model", "embeddingDim"),
}
"""Fields that a variant of a set may have of its own, by their part and name in ``spec.variants``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepJob:
    """A job of a sweep: one variant, or a set of them."""

    file: JobFile
    priced: JobFile
    """The same job as it is priced: equal ones are equal in it."""
    variants: tuple[int, ...]
    """Numbers of its variants."""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.file.job.metadata.name

    def variant_name(self, number: int) -> str | None:
        """Return the name of a variant in the job's metrics. None: the job is the variant."""
        return None if len(self.variants) == 1 else _name(number)


def single_jobs(variants: Sequence[Variant]) -> tuple[SweepJob, ...]:
    """Return a job for each variant."""
    return tuple(SweepJob(file=each.file, priced=each.file, variants=(number,)) for number, each in enumerate(variants))


def sets_in(file: JobFile, variants: Sequence[Variant]) -> tuple[tuple[tuple[SweepJob, ...], ...], str | None]:
    """Return all variants in sets, for each number of jobs below theirs, and why there are none, or None."""
    found: list[tuple[SweepJob, ...]] = []
    for num_jobs in range(len(variants) - 1, 0, -1):
        try:
            jobs = sets_of(file, variants, num_jobs)
        except (CommandError, DocumentError) as error:
            return (), without_hint(str(error))
        if jobs not in found and len(jobs) < len(variants):
            found.append(jobs)
    if not found:
        fields = dict.fromkeys(_field(path) for variant in variants for path in _shared(variant))
        return (), f"no two are alike in {', '.join(fields)}, which all variants of a trainer share"
    return tuple(found), None


def sets_of(file: JobFile, variants: Sequence[Variant], num_jobs: int) -> tuple[SweepJob, ...]:
    """Return that many jobs which train all variants, in the order of their first variants; more where they must be.

    Variants in one job are equal in all fields that ``spec.variants`` has not. The largest set is as small as can be.

    Args:
        file: the job.
        variants: of it.
        num_jobs: at most the variants.

    Raises:
        DocumentError: the job cannot train variants together.
        CommandError: likewise.
    """
    alike: dict[str, list[int]] = {}
    for number, variant in enumerate(variants):
        alike.setdefault(repr(_shared(variant)), []).append(number)
    shares = dict.fromkeys(alike, 1)
    for _ in range(num_jobs - len(alike)):
        shares[max(alike, key=lambda each: len(alike[each]) / shares[each])] += 1
    sets = [each for key, numbers in alike.items() for each in _cut(numbers, shares[key])]
    return tuple(_job(file, variants, each) for each in sorted(sets))


def _cut(numbers: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yield that many sets, none empty: first as many as can be of the size that the largest must have.

    Equal sets are priced once, and sets of one size that follow each other often are equal.
    """
    size, begin = math.ceil(len(numbers) / count), 0
    for others in reversed(range(count)):
        end = min(begin + size, len(numbers) - others)
        yield tuple(numbers[begin:end])
        begin = end


def _job(file: JobFile, variants: Sequence[Variant], numbers: tuple[int, ...]) -> SweepJob:
    first = variants[numbers[0]]
    if len(numbers) == 1:
        return SweepJob(file=first.file, priced=first.file, variants=numbers)

    fields = dict.fromkeys(_field(path) for number in numbers for path in variants[number].settings)
    # What a variant leaves unset is that of the job, so that the job has nothing where one of them unsets it.
    unset = {
        path: None
        for number in numbers
        for path, value in variants[number].settings.items()
        if value is None and path in _OWN and path != WIDTHS
    }

    def named(names: Sequence[str]) -> JobFile:
        document = with_settings(copy.deepcopy(dict(file.document)), {**_shared(first), **unset})
        entries = [_entry(variants[number], name, fields) for number, name in zip(numbers, names, strict=True)]
        document["spec"] = {**document["spec"], "variants": entries}
        text = "\n".join(variants[number].text for number in numbers)
        document["metadata"] = with_metadata(file, name=first.name, text=text)
        job = DLRMTrainingJob.from_data(document, where=f"{file.path} with {len(numbers)} variants in one job")
        return JobFile(path=file.path, job=job, document=document, config_maps=file.config_maps)

    return SweepJob(
        file=named([_name(number) for number in numbers]),
        priced=named([_name(place) for place in range(len(numbers))]),
        variants=numbers,
    )


def _name(number: int) -> str:
    return f"v{number:02}"


def _entry(variant: Variant, name: str, fields: Iterable[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name}
    for field in fields:
        value = variant.settings.get(WIDTHS) if field == WIDTHS else _at(variant, field)
        if field in _OWN and value is not None:
            part, own = _OWN[field]
            entry.setdefault(part, {})[own] = value
    return entry


def _at(variant: Variant, field: str) -> object:
    """Return a field of the variant's job: what ``--set`` changed below it, and all else that the job says there."""
    found: Any = variant.file.document
    for name in field.split("."):
        found = (found or {}).get(name)
    return found


def _shared(variant: Variant) -> Mapping[str, Any]:
    return {path: value for path, value in variant.settings.items() if _field(path) not in _OWN}


def _field(path: str) -> str:
    """Return the field of the model or the training that a path is in."""
    return path if path == WIDTHS else ".".join(path.split(".")[:3])
