"""The CustomResourceDefinition of DLRMTrainingJob, and its page in the reference, from the models of this package.

``python -m neuroshard_api.job.crd CRD_FILE PAGE_FILE EXAMPLE_FILE`` writes the first two; the page shows the third.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from neuroshard_api.job import training_job
from neuroshard_api.job.earlier_fields import EARLIER_FIELDS
from neuroshard_api.job.resource import INT32_MAX
from neuroshard_api.job.spec import GROUP
from neuroshard_api.job.training_job import DLRMTrainingJob

Schema = dict[str, Any]

_METRIC = '.status.trainerStatus.metrics[?(@.name=="{}")].value'
PRINTER_COLUMNS: tuple[Mapping[str, str | int], ...] = (
    {"name": "Stage", "type": "string", "jsonPath": ".status.stage"},
    {"name": "Nodes", "type": "integer", "jsonPath": ".spec.trainer.numNodes"},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.workers.ready"},
    {"name": "Predicted(us)", "type": "integer", "jsonPath": ".status.cost.predicted.totalMicroseconds"},
    {"name": "Measured(us)", "type": "integer", "jsonPath": ".status.cost.measured.totalMicroseconds"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason"},
    {"name": "Warning", "type": "string", "priority": 1, "jsonPath": ".status.warnings[0].reason"},
    {"name": "Plan", "type": "string", "priority": 1, "jsonPath": ".status.plan.configMapRef.name"},
    {"name": "NE", "type": "string", "priority": 1, "jsonPath": _METRIC.format("normalized_entropy")},
    {"name": "AUC", "type": "string", "priority": 1, "jsonPath": _METRIC.format("auc")},
    {"name": "Best", "type": "string", "priority": 1, "jsonPath": ".status.trainerStatus.bestVariant"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""What `kubectl get` shows; those of priority 1 with `-o wide`."""

_KEPT = ("enum", "format", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "multipleOf", "pattern")
_OPEN = "x-kubernetes-preserve-unknown-fields"
_WRAP = 110
CRD_HEADER = "# Written by `make crds` from the models in api/neuroshard_api; change those.\n"


def custom_resource_definition() -> Schema:
    """Return the CustomResourceDefinition as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{training_job.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": training_job.KIND,
                "listKind": f"{training_job.KIND}List",
                "plural": training_job.PLURAL,
                "singular": training_job.KIND.lower(),
                "shortNames": list(training_job.SHORT_NAMES),
                "categories": ["all", "training"],
            },
            "versions": [
                {
                    "name": training_job.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [dict(column) for column in PRINTER_COLUMNS],
                    "schema": {"openAPIV3Schema": job_schema()},
                }
            ],
        },
    }


def job_schema() -> Schema:
    """Return the resource's structural schema, as Kubernetes wants it: no references, one type per field."""
    return deepcopy(_job_schema())


@cache
def _job_schema() -> Schema:
    source = DLRMTrainingJob.model_json_schema(by_alias=True)
    parts = {name: _structural(source["properties"][name], source["$defs"]) for name in ("spec", "status")}
    return {
        "type": "object",
        "description": " ".join(source["description"].split()),
        "required": ["spec"],
        "x-kubernetes-validations": source["x-kubernetes-validations"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Group and version of the resource."},
            "kind": {"type": "string", "description": "Kind of the resource."},
            "metadata": {"type": "object"},  # the API server describes it itself and forbids more
            **parts,
        },
    }


def _structural(source: Schema, definitions: Schema) -> Schema:
    """Turn pydantic's JSON schema of one value into a structural one."""
    source = _resolved(source, definitions)
    schema: Schema = {}
    if "description" in source:
        schema["description"] = " ".join(source["description"].split())
    if source.get("x-kubernetes-int-or-string"):
        schema["anyOf"] = source["anyOf"]
    else:
        schema["type"] = source["type"]
    schema |= {key: source[key] for key in _KEPT if key in source}
    schema |= {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}
    if schema.get("type") == "integer":
        schema |= _integer_range(source)
    if "properties" in source:
        required = source.get("required", [])
        schema["properties"] = {name: _structural(each, definitions) for name, each in source["properties"].items()}
        schema |= {"required": required} if required else {}
    elif "items" in source:
        schema["items"] = _structural(source["items"], definitions)
    elif isinstance(source.get("additionalProperties"), dict):
        schema["additionalProperties"] = _structural(source["additionalProperties"], definitions)
    default = source.get("default")
    if isinstance(default, dict):
        # The API server checks a default by the rules before it fills in the defaults within.
        fields = schema.get("properties", {})
        default = {name: field["default"] for name, field in fields.items() if "default" in field}
        default = default if fields else None
    if default not in (None, []):
        schema["default"] = default
    return schema


def _resolved(source: Schema, definitions: Schema) -> Schema:
    """Follow references, and leave out null: a field that may be null may be left out instead."""
    while "$ref" in source or ("anyOf" in source and not source.get("x-kubernetes-int-or-string")):
        if "$ref" in source:
            target = definitions[source["$ref"].rsplit("/", 1)[-1]]
        else:
            (target,) = (option for option in source["anyOf"] if option.get("type") != "null")
        outer = {key: value for key, value in source.items() if key not in {"$ref", "anyOf"}}
        source = {**target, **outer}
    return source


def _integer_range(source: Schema) -> Schema:
    """Return an integer's limits and its width; Kubernetes knows inclusive limits and 32 or 64 bits."""
    low = source.get("minimum")
    high = source.get("maximum", source["exclusiveMaximum"] - 1 if "exclusiveMaximum" in source else None)
    assert low is not None, f"give the integer described as {source.get('description')!r} its limits"
    assert high is not None, f"give the integer described as {source.get('description')!r} its limits"
    limits = {"minimum": low, "maximum": high}
    if high == 2**63 - 1:
        del limits["maximum"]  # the format says it; as a number, JSON's readers would round it
    return {"format": "int32" if high <= INT32_MAX else "int64", **limits}


def crd_text() -> str:
    """Return the CustomResourceDefinition as YAML."""
    text = yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=_WRAP, default_flow_style=False
    )
    return CRD_HEADER + text


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, and with lists indented as yamllint likes them."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's signature
        """Write equal parts out each time."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - yaml's signature
        """Indent the entries of a list below its key."""
        super().increase_indent(flow, indentless=False)


def page_text(example: str) -> str:
    """Return the reference page: every field with its type, default, limits and effect, a heading for each part.

    Args:
        example: a job with every field at the top, as YAML with comments.
    """
    schema = job_schema()
    parts = [PAGE_HEADER, "## Every field in one job\n", *(f"    {line}".rstrip() for line in example.splitlines()), ""]
    for title in ("spec", "status"):
        whole = schema["properties"][title]
        parts += [f"## {title.capitalize()}\n", f"{whole['description'].splitlines()[0]}\n", _TABLE]
        needed = whole.get("required", [])
        fields = whole["properties"].items()
        parts += [_row(name, field, needed=name in needed) for name, field in fields]
        for name, field in fields:
            inner = [*fields_below(field, ""), *fields_below(field.get("items", {}), "[]")]
            if inner:
                parts += [f"\n### {title}.{name}\n", f"{field['description']}\n", _TABLE]
                parts += [_row(path, each, needed=is_needed) for path, each, is_needed in inner]
        parts.append("")
    parts.append(
        "## Rules between fields\n\nThe API server refuses a job that breaks one of these, with these words.\n"
    )
    parts.append("| where | message |\n|---|---|")
    parts += [f"| `{path}` | {rule['message']} |" for path, rule in _rules(schema, "")]
    parts.append(
        "\n## Earlier fields\n\nA job with a field of the form before 0.1.0 is refused with a sentence that names its "
        "present place.\n\n| earlier field | now |\n|---|---|"
    )
    parts += [f"| `{path}` | {now if ' ' in now else f'`{now}`'} |" for path, now in EARLIER_FIELDS.items()]
    return "\n".join(parts) + "\n"


_TABLE = "| field | type | default | effect |\n|---|---|---|---|"
PAGE_HEADER = f"""# The job file

<!-- Written by `make crds` from the models in api/neuroshard_api; change those. -->

A `{training_job.KIND}` of `{training_job.API_VERSION}` (`kubectl get dlrmjob`, `kubectl get dtj`) says what is trained
and how. The same file runs in a cluster with `kubectl apply -f job.yaml` and on one machine with
`neuroshard run job.yaml`; [run locally](../guides/run-locally.md) says which fields have no meaning there.
Only `spec.model` is needed. `kubectl explain dlrmjob.spec --recursive` shows the same fields. Errors name a field by
its path, and each part of the job, such as [spec.planner](#specplanner), has a heading here, where paths begin.

A number with a fraction is written as text (`'2.5'`), since Kubernetes resources hold no floating-point numbers.
"""


def fields_below(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """Give every field below a schema with its path, outer before inner."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, field, name in schema.get("required", [])
        yield from fields_below(field, here)
        if "items" in field:
            yield from fields_below(field["items"], f"{here}[]")


def is_leaf(field: Schema) -> bool:
    """Return whether a field has no fields below it."""
    return "properties" not in field and "properties" not in field.get("items", {})


def _row(path: str, field: Schema, *, needed: bool) -> str:
    default = "required" if needed else _default(field)
    return f"| `{path}` | {_type(field)} | {default} | {field['description'].replace('|', '&#124;')} |"


def _default(field: Schema) -> str:
    if "default" not in field or "properties" in field:
        return ""  # an object's default is that of its fields
    default = field["default"]
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _type(field: Schema) -> str:
    """Say a field's type and its limits in a few words."""
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if "items" in field:
        limits = _limits(field, "minItems", "maxItems", " entries")
        return f"list of {_type(field['items'])}{limits}"
    if "additionalProperties" in field:
        return "map of " + _type(field["additionalProperties"])
    if field.get("type") == "integer":
        return "integer" + _limits(field, "minimum", "maximum", "")
    most = f", at most {field['maxLength']:,} characters" if "maxLength" in field else ""
    names = {None: "integer or text", "string": f"text{most}", "boolean": "true or false", "object": "object"}
    return "time" if field.get("format") == "date-time" else names[field.get("type")]


def _limits(field: Schema, low: str, high: str, unit: str) -> str:
    most = f" to {field[high]:,}" if high in field else ""
    if low in field:
        return f", {field[low]:,}{most or ' or more'}{unit}"
    return f", at most {field[high]:,}{unit}" if most else ""


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Give every rule with the path of its value."""
    for rule in schema.get("x-kubernetes-validations", []):
        yield path or "(the job)", rule
    for name, field in schema.get("properties", {}).items():
        yield from _rules(field, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from _rules(schema[key], path + mark)


if __name__ == "__main__":
    if len(sys.argv) != 4:  # noqa: PLR2004 - the program and three arguments
        sys.exit("usage: python -m neuroshard_api.job.crd CRD_FILE PAGE_FILE EXAMPLE_FILE")
    Path(sys.argv[1]).write_text(crd_text(), encoding="utf-8")
    shown = Path(sys.argv[3]).read_text(encoding="utf-8")
    Path(sys.argv[2]).write_text(page_text(shown), encoding="utf-8")
