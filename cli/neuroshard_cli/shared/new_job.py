"""A job for data that was read once: its text with a comment for each decision, and the tables behind it.

What the data tells is written down: tables, columns, what is missing. What it cannot tell has a value that works on
this machine, and the comment next to it says what to set for GPUs and for a cluster.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from neuroshard_api.process.failures import CommandError

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import Table, TableSet
    from neuroshard_api.job.training import DataFormat
    from neuroshard_profiler.data.columns import ChosenColumns
    from neuroshard_profiler.data.data_set import DataSet
    from neuroshard_profiler.data.numbers import SeenNumbers
    from neuroshard_profiler.data.sample import Sample
    from neuroshard_profiler.data.statistics import SampledFeature

VALIDATION_PERCENT = 10
MAX_BATCH_SIZE = 8192
"""Samples per device and step, as in public trainings of DLRMs on GPUs."""
MIN_STEPS = 100
"""Steps of an epoch, which small data gets by smaller batches: fewer train little."""
MANY_SAMPLES = 1_000_000
"""From which the hidden layers are those of MLPerf's DLRM; smaller data is learned by heart by them."""
_HIDDEN = {False: ((64,), (256, 64)), True: ((512, 256), (512, 512, 256))}
"""Below and above the interaction, by whether there are many samples."""
MAX_CONFIG_MAP_BYTES = 1_000_000
_HISTOGRAM_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class JobData:
    """The data of a job: what its columns are, before any row is read."""

    place: str
    """Path, pattern, or URL."""
    data_format: "DataFormat"
    columns: "ChosenColumns"
    num_dense: int
    session: str | None
    time: str | None
    numbers: "SeenNumbers"
    """Takes labels and dense columns."""

    @classmethod
    def of(cls, data: "DataSet", place: str) -> "JobData":
        """Return the data of a job. Raises DataError where no label is known."""
        from neuroshard_api.process.errors import DataError

        columns = data.columns
        if columns.label is None:
            raise DataError(
                f"{place}: has no column 'label'; hint: name the column of the label with --label, one of "
                f"{', '.join((*columns.features, *columns.passed_over))}"
            )
        return cls(
            place=place,
            data_format=data.data_format,
            columns=columns,
            num_dense=data.num_dense,
            session=data.session,
            time=data.time,
            numbers=data.seen_numbers(refuses=True),
        )

    def require_readable(self, *, root: Path) -> None:
        """Do nothing unless footers or headers tell that no job could train on the data.

        Args:
            root: where a relative path begins.

        Raises:
            DataError: with file, row, and column.
            DocumentError: a feature is another column.
        """
        from neuroshard_api.documents.tables import IdRule, Table, TableSet
        from neuroshard_api.job.feature_columns import require_feature_columns
        from neuroshard_api.job.training_job import DLRMTrainingJob
        from neuroshard_profiler.data.statistics import table_names
        from neuroshard_trainer.data.formats import require_readable

        names = table_names(self.columns.features, where=self.place)
        tables = TableSet(
            tables=tuple(  # whose rules take any id: the tables are not known yet
                Table(
                    name=name,
                    num_embeddings=1,
                    embedding_dim=4,
                    feature_names=(feature,),
                    id_rule=IdRule.HASH,
                )
                for feature, name in names.items()
            )
        )
        source = {"configMapKeyRef": {"name": "tables", "key": "tables.yaml"}}
        model = {"embeddingTablesFrom": source, "numDenseFeatures": self.num_dense}
        missing = {"missing": "Mean"} if self.numbers.may_miss else {}
        spec = {"model": model, "data": {**self.fields(self.columns.dense), **missing}}
        job = DLRMTrainingJob.from_data(_resource(spec), where=self.place)
        require_feature_columns(job.spec.model, job.spec.data, tables, where=self.place)
        require_readable(job, tables, root=root)

    def fields(self, dense: Sequence[str]) -> dict[str, Any]:
        """Return the fields of ``spec.data`` that name files and columns."""
        from neuroshard_api.job.training import WITH_NAMED_COLUMNS, DataFormat

        names: dict[str, Any] = {"format": self.data_format.value, "path": self.place}
        if self.data_format in {*WITH_NAMED_COLUMNS, DataFormat.NPZ}:
            names["labelColumn"] = self.columns.label
        if self.data_format in WITH_NAMED_COLUMNS and dense:
            names["denseColumns"] = list(dense)
        columns = {"sessionColumn": self.session, "timeColumn": self.time}
        return {**names, **{key: value for key, value in columns.items() if value is not None}}

    @property
    def valued(self) -> tuple[str, ...]:
        """Dense columns that have a value in the sample."""
        return tuple(name for name in self.columns.dense if self.numbers.columns[name].num_values)

    @property
    def passed_over(self) -> str:
        """Columns that the job does not read, with the reason; empty: there are none."""
        from dataclasses import replace

        from neuroshard_profiler.data.columns import DENSE_ARRAY

        used = {*self.numbers.names, self.session, self.time}
        others = {
            name: reason
            for name, reason in self.columns.passed_over.items()
            if name not in used and reason != DENSE_ARRAY
        }
        others |= dict.fromkeys((name for name in self.columns.dense if name not in self.valued), "no value")
        return replace(self.columns, passed_over=others).passed_over_text


def pattern_of(places: Sequence[str]) -> str:
    """Return the one path or pattern that names the same files. Raises CommandError where there is none."""
    if len(places) == 1:
        return places[0]
    folders, suffixes = ({each(PurePath(place)) for place in places} for each in (_folder, _suffixes))
    if len(folders) == len(suffixes) == 1:
        pattern = str(PurePath(folders.pop()) / f"*{suffixes.pop()}")
        first = PurePath(places[0])
        found = Path(first.anchor).glob(str(PurePath(pattern).relative_to(first.anchor)))
        if {str(PurePath(place)) for place in places} == {str(each) for each in found if each.is_file()}:
            return pattern
    raise CommandError(
        f"DATA: the shell made {len(places):,} files of the pattern, which no single pattern names"
        "; hint: put the pattern in quotes, so that the job has it"
    )


def _folder(place: PurePath) -> str:
    return str(place.parent)


def _suffixes(place: PurePath) -> str:
    return "".join(place.suffixes)


def job_name(place: str) -> str:
    """Return a name for the job: that of the data, as far as names of resources allow."""
    from neuroshard_api.job.training_job import MAX_NAME_LENGTH

    path = PurePath(place.rstrip("/"))
    last = path.name.split(".")[0]
    words = [word for word in re.split(r"[^a-z0-9]+", last.lower()) if word]
    if not words and path.parent.name:  # of a pattern such as clicks/*.parquet
        return job_name(str(path.parent))
    name = "-".join(words) or "job"
    return (name if name[0].isalpha() else f"job-{name}")[:MAX_NAME_LENGTH].rstrip("-")


def job_text(log: JobData, sample: "Sample", *, embedding_dim: int, command: Sequence[str]) -> str:
    """Return the job, and the ConfigMap of its tables, as commented YAML.

    Args:
        log: the data, whose numbers were read.
        sample: what was read.
        embedding_dim: columns of every table.
        command: what the user typed.

    Raises:
        DataError: there are more tables than a ConfigMap holds, or a feature can have no table.
        DocumentError: the job cannot be.
    """
    from neuroshard_api.documents.yaml_text import parse_manifests
    from neuroshard_api.job.training_job import DLRMTrainingJob

    name = job_name(log.place)
    tables = sample.table_set(embedding_dim)
    text = "\n".join(
        [*_job_lines(log, sample, name=name, command=command), *_table_lines(sample, tables, name=name), ""]
    )
    DLRMTrainingJob.from_data(parse_manifests(text, where="job")[0], where="job")
    return text


def _job_lines(log: JobData, sample: "Sample", *, name: str, command: Sequence[str]) -> list[str]:
    statistics = sample.statistics
    count = statistics.num_samples
    training = count * (100 - VALIDATION_PERCENT) // 100
    batch_size = min(MAX_BATCH_SIZE, 1 << max(0, (training // MIN_STEPS).bit_length() - 1))
    num_steps = training // batch_size
    below, above = _HIDDEN[count >= MANY_SAMPLES]
    dense = log.valued
    num_dense = len(dense) if log.columns.dense else log.num_dense
    is_many = "the hidden layers of MLPerf's DLRM" if count >= MANY_SAMPLES else "few, since the data is small"
    passed_over = f"# Passed over: {_in_comment(log.passed_over)}." if log.passed_over else None
    doubts = [f"# {_in_comment(doubt)}" for doubt in sample.doubts]
    lines = [
        f"# Made from {count:,} samples by: {_in_comment(shlex.join(['neuroshard', *command]))}",
        "# Check, plan for GPUs that need not be here, train on this machine, train in a cluster:",
        "#   neuroshard validate job.yaml",
        "#   neuroshard plan job.yaml --devices 8 --device-type h100-80gb",
        "#   neuroshard run job.yaml",
        "#   kubectl apply -f job.yaml",
        passed_over,
        *doubts,
        "apiVersion: training.neuroshard.dev/v1alpha1",
        "kind: DLRMTrainingJob",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  model:",
        "    # The ConfigMap at the end of this file. For `neuroshard run` alone, a file does too: {file: tables.json}",
        f"    embeddingTablesFrom: {{configMapKeyRef: {{name: {name}-tables, key: tables.yaml}}}}",
        f"    batchSizePerDevice: {batch_size}  # samples per device and step; {num_steps:,} steps an epoch",
        "    embeddingOptimizer: RowWiseAdagrad  # one number of state per row; Adam has two per element",
        "    architecture: DLRM  # or DCNv2, Wukong",
        *(
            [f"    numDenseFeatures: {num_dense}", f"    denseArchLayerSizes: {list(below)}  # {is_many}"]
            if num_dense
            else ["    numDenseFeatures: 0  # no column of fractions; --dense names integers that are numbers, not ids"]
        ),
        f"    overArchLayerSizes: {list(above)}" + ("" if num_dense else f"  # {is_many}"),
        "  profiler:",
        "    budgetSeconds: 60  # measurements of the device; more of them lower the error of the predicted times",
        "  trainer:",
        "    numNodes: 1  # more than 1 in a cluster alone",
        "    numProcPerNode: 1  # one device each: as many as this machine has GPUs, or `gpu` with the next line",
        "    # resourcesPerNode: {limits: {nvidia.com/gpu: 8}}  # in a cluster: GPUs of a node",
        "    # image: registry.example/team/neuroshard-trainer:0.1.0  # in a cluster; if unset: the operator's",
        *_data_lines(log, dense),
        "  training:",
        "    epochs: 1  # models of clicks overfit in a second pass",
        "    embeddingLearningRate: '0.02'",
        "    denseOptimizer: Adam",
        "    denseLearningRate: '0.001'",
        "  # checkpoint: {persistentVolumeClaim: {claimName: checkpoints}}  # in a cluster: what outlives a lost node",
    ]
    return [line for line in lines if line is not None]


def _data_lines(log: JobData, dense: Sequence[str]) -> list[str]:
    """Return the lines of ``spec.data``."""
    numbers = log.numbers
    share = 100 * numbers.num_positive / numbers.num_samples
    missing = {
        name: column.num_missing for name, column in numbers.columns.items() if name in dense and column.num_missing
    }
    comments = {
        "path": "begins in this file's folder, in a pod in /data",
        "labelColumn": f"{share:.3g} % of the samples are 1",
        "sessionColumn": "its samples stay together, and whole sessions are held out",
        "timeColumn": "orders the samples of a session",
    }
    lines = ["  data:"]
    for key, value in log.fields(dense).items():
        if key == "denseColumns":
            lines.append("    denseColumns:  # as they are stored: scale what is large, such as by a logarithm")
            ranges = [(name, numbers.columns[name]) for name in dense]
            lines += [f"      - {scalar(name)}  # {each.smallest:.6g} to {each.largest:.6g}" for name, each in ranges]
            continue
        lines.append(f"    {key}: {scalar(value)}" + (f"  # {comments[key]}" if key in comments else ""))
    if missing:
        found = ", ".join(f"{_in_comment(name)} in {count:,} samples" for name, count in missing.items())
        lines.append(f"    missing: Mean  # or Zero, Error; missing: {found}")
    return [
        *lines,
        f"    validationPercent: {VALIDATION_PERCENT}  # held out; or evaluationPath, for data in the order of time",
        f"    # persistentVolumeClaim: {{claimName: {job_name(log.place)}}}  # in a cluster: the volume of path",
    ]


def _table_lines(sample: "Sample", tables: "TableSet", *, name: str) -> list[str]:
    """Return the ConfigMap of the tables. Raises DataError where it would be too large."""
    from neuroshard_api.process.errors import DataError

    pairs = zip(tables.tables, sample.statistics.features, strict=True)
    rows = [f"      - {_flow(_described(table))}{_remark(feature)}" for table, feature in pairs]
    size = sum(len(row.encode()) for row in rows)
    if size > MAX_CONFIG_MAP_BYTES:
        raise DataError(
            f"{sample.place}: {len(rows):,} tables need {size:,} bytes, and a ConfigMap holds {MAX_CONFIG_MAP_BYTES:,}"
            "; hint: write them with `neuroshard stats --out tables.json`, and a job with `embeddingTablesFrom: {file: "
            "tables.json}`"
        )
    head = {
        "schema_version": tables.schema_version,
        "name": name,
        "source": f"sample {sample.place}",
        "reuse_batch_size": tables.reuse_batch_size,
        "session_run": tables.session_run,
    }
    return [
        "---",
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {name}-tables",
        "data:",
        "  # Rows are those that the samples show: raise num_embeddings where more ids will come.",
        "  tables.yaml: |",
        *(f"    {key}: {scalar(value)}" for key, value in head.items() if value is not None),
        "    tables:",
        *rows,
    ]


def _described(table: "Table") -> dict[str, Any]:
    """Return a table as plain data, its histogram rounded."""
    found = table.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if table.feature_names == (table.name,):
        del found["feature_names"]
    found["pooling_factor"] = table.pooling_factor
    if table.reuse_histogram is not None:
        found["reuse_histogram"] = [round(share, _HISTOGRAM_DIGITS) for share in table.reuse_histogram]
    return found


def _remark(feature: "SampledFeature") -> str:
    """Return a comment with the ids of a feature, and those that share a row."""
    shared = "" if feature.shared is None else f", {100 * feature.shared.ids:.3g} % of them share a row"
    return f"  # {feature.num_ids:,} ids{shared}"


def _flow(fields: dict[str, Any]) -> str:
    """Return a mapping on one line of YAML."""
    return f"{{{', '.join(f'{key}: {scalar(value)}' for key, value in fields.items())}}}"


def scalar(value: object) -> str:
    """Return a value in YAML on one line; texts in quotes where they would be read as something else."""
    import yaml

    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value) and yaml.safe_load(value) == value:
        return value
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    """Return a character between double quotes in YAML."""
    if character in {'"', "\\"}:
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _in_comment(text: str) -> str:
    return " ".join(text.split())


def _resource(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a job of this spec as plain data."""
    from neuroshard_api.job.training_job import API_VERSION, KIND

    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "job"}, "spec": spec}
