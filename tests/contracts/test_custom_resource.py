"""The custom resource's models, its CRD, its examples and its reference page say the same."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.job.crd import crd_text, fields_below, is_leaf, job_schema, page_text
from neuroshard_api.job.training_job import KIND, DLRMTrainingJob
from neuroshard_decisions.conditions import ConditionType
from support import builders
from support.jobs.given_paths import EXAMPLES, given_paths, jobs_in

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "dlrmtrainingjobs.yaml"
PAGE = ROOT / "docs" / "reference" / "job-file.md"
EVERY_FIELD = ROOT / "docs" / "reference" / "every-field.yaml"
each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Give every field below a structural schema with its path."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
        yield from fields(field.get("items", {}), f"{path}.{name}[]")


DEFINITION = yaml.load(CRD.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
SCHEMA: dict[str, Any] = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FIELDS = dict(fields(SCHEMA))


def test_the_definition_is_that_of_the_models() -> None:
    """`make crds` was run after the last change of the models, and nobody edited its result."""
    assert CRD.read_text(encoding="utf-8") == crd_text()


def test_the_chart_installs_that_definition() -> None:
    """A chart holds no link to a file outside of it, so it has a copy."""
    copy = ROOT / "charts" / "neuroshard-operator" / "files" / CRD.name

    assert copy.read_text(encoding="utf-8") == CRD.read_text(encoding="utf-8")


def test_the_reference_page_is_that_of_the_models() -> None:
    """`make crds` was run after the last change of the models."""
    assert PAGE.read_text(encoding="utf-8") == page_text(EVERY_FIELD.read_text(encoding="utf-8"))


def test_people_read_few_conditions() -> None:
    """What else is to report of a job is a reason of one."""
    assert len(ConditionType) <= 10


def test_the_annotated_job_is_valid_and_names_every_field_at_the_top() -> None:
    """Each is set, or named in a comment, as those that exclude another one."""
    text = EVERY_FIELD.read_text(encoding="utf-8")
    comments = " ".join(line.partition(" # ")[2] or line.partition("  # ")[2] for line in text.splitlines())
    named = set(re.findall(r"\w+", comments))
    (data,) = yaml.safe_load_all(text)
    job = DLRMTrainingJob.from_data(data, where=EVERY_FIELD.name)
    given = set(given_paths({"spec": data["spec"]}))
    top = [
        path
        for path, field, _ in fields_below(job_schema()["properties"]["spec"], "")
        if is_leaf(field) and not path.startswith("experimental")
    ]

    missing = [path for path in top if f".spec.{path}" not in given and path.rpartition(".")[2] not in named]
    assert missing == []
    assert job.metadata.name == "every-field"


def test_every_field_says_what_it_does() -> None:
    """`kubectl explain` has a sentence for every field."""
    bare = [path for path, field in FIELDS.items() if path != ".metadata" and not field.get("description")]

    assert bare == []


def test_every_integer_has_limits() -> None:
    """A value that no one meant is refused by the API server."""
    open_ended = [
        path
        for path, field in FIELDS.items()
        if field.get("type") == "integer" and ("minimum" not in field or "format" not in field)
    ]

    assert open_ended == []


def test_no_field_is_a_floating_point_number() -> None:
    """Clients in other languages round them differently."""
    assert [path for path, field in FIELDS.items() if field.get("type") == "number"] == []


def test_lists_say_how_they_are_merged_and_how_long_they_may_be() -> None:
    """Rules on unbounded lists would cost too much; server-side apply needs the kind of list."""
    lists = {path: field for path, field in FIELDS.items() if field.get("type") == "array"}

    assert [path for path, field in lists.items() if "maxItems" not in field] == []
    assert [path for path, field in lists.items() if "x-kubernetes-list-type" not in field] == []


def test_the_defaults_of_the_definition_are_those_of_the_models() -> None:
    """A job read here without the API server's defaults equals one read with them."""
    small = {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": "small"},
        "spec": {"model": {"embeddingTables": [{"name": "a", "numEmbeddings": 4, "embeddingDim": 8}]}},
    }
    bare = DLRMTrainingJob.from_data(small)
    filled = DLRMTrainingJob.from_data(
        small | {"spec": with_defaults(small["spec"], job_schema()["properties"]["spec"])}
    )

    assert filled == bare


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """Fill in defaults as the API server does."""
    if isinstance(value, list):
        return [with_defaults(each, schema["items"]) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    filled = {name: field["default"] for name, field in properties.items() if "default" in field} | value
    return {name: with_defaults(each, properties.get(name, {})) for name, each in filled.items()}


def test_the_status_of_the_tests_has_every_field() -> None:
    """What is proved with it is proved of every field."""
    given = set(given_paths({"status": builders.status().model_dump(mode="json", exclude_none=True)}))

    assert given == {path for path in FIELDS if path.startswith(".status")}


@each_example
def test_an_example_is_a_valid_job(path: Path) -> None:
    """The models take every example."""
    jobs = [DLRMTrainingJob.from_data(job, where=path.name) for job in jobs_in(path)]

    assert jobs


def test_the_examples_together_show_every_part_of_a_spec() -> None:
    """For each group of fields there is an example to copy from."""
    shown = {given for path in EXAMPLES for job in jobs_in(path) for given in given_paths(job)}
    groups = {path for path, field in FIELDS.items() if path.count(".") == 2 and path.startswith(".spec.")}

    assert groups - shown == set()
