"""The operator of today under the definition of tomorrow: today's, with one more defaulted field in any place."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from neuroshard_api.job.training_job import DLRMTrainingJob
from support import builders

ROOT = Path(__file__).parents[2]
NEW = "fieldOfTheNextRelease"


@cache
def definition() -> dict[str, Any]:
    """Return the schema of the spec as it is installed."""
    text = (ROOT / "crds" / "dlrmtrainingjobs.yaml").read_text(encoding="utf-8")
    [version] = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def objects(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all parts of the spec that have fields of their own."""
    if "properties" in schema:
        yield path
        for name, below in schema["properties"].items():
            yield from objects(below, (*path, name))


def with_defaults(schema: dict[str, Any], value: Any, place: tuple[str, ...]) -> Any:
    """Return a value as the API server returns it: defaults filled in, with those of the new field."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = dict(value)
    for name, below in schema["properties"].items():
        if name not in filled and "default" in below:
            filled[name] = below["default"]
        if name in filled:
            filled[name] = with_defaults(below, filled[name], place[1:] if place[:1] == (name,) else ("-",))
    return filled | ({NEW: {"enabled": True}} if not place else {})


def test_a_new_field_anywhere_leaves_every_other_field_as_it_is() -> None:
    """The API server fills it into every stored job; the operator reads the same job, and can name the field."""
    data = builders.job_data(trainer={"numNodes": 2})
    places = sorted(objects(definition()))
    today = {**data, "spec": with_defaults(definition(), data["spec"], ("-",))}
    expected = DLRMTrainingJob.from_stored_data(today)
    assert len(places) > 30
    assert expected.unknown == ()

    for place in places:
        tomorrow = {**data, "spec": with_defaults(definition(), data["spec"], place)}
        read = DLRMTrainingJob.from_stored_data(tomorrow)
        is_present = today["spec"] != tomorrow["spec"]
        assert read.job == expected.job, place
        assert read.unknown == ((".".join(("spec", *place, NEW)),) if is_present else ()), place
