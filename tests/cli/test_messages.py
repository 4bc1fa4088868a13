"""The whole printed error of typical broken inputs, in one file: a change of words is seen in review."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.golden import Golden, sections

MESSAGES = Path(__file__).parent / "messages.txt"
TABLE = {"name": "a", "num_embeddings": 1000, "embedding_dim": 32}
DEVICES = ("--devices", "8", "--device-type", "h100-80gb")


def table_set(*tables: object) -> str:
    """Return a table set of these tables as JSON."""
    return json.dumps({"schema_version": "table-set/v1", "tables": tables})


BROKEN: dict[str, tuple[tuple[str, ...], str]] = {
    "tables-dim": (("plan", "tables.json", *DEVICES), table_set(TABLE | {"embedding_dim": 30})),
    "tables-two-faults": (("plan", "tables.json", *DEVICES), table_set(TABLE | {"num_embeddings": 0, "rows": 3})),
    "tables-version": (("plan", "tables.json", *DEVICES), '{"schema_version": "table-set/v9", "tables": []}'),
    "tables-truncated": (("plan", "tables.json", *DEVICES), table_set(TABLE)[:-20]),
    "tables-csv": (
        ("plan", "tables.csv", *DEVICES),
        "name,num_embeddings,embedding_dim,pooling_factor,zipf_exponant\na,10,8,1,1\n",
    ),
    "tables-infeasible": (("plan", "tables.json", *DEVICES), table_set(TABLE | {"num_embeddings": 10**12})),
    "topology": (("plan", "criteo-kaggle", "--devices", "topology.yaml"), "schema_version: topology/v1\nnodes: 2\n"),
    "plan": (("explain", "plan.json"), table_set(TABLE)),
    "job": (("run", "job.yaml"), "apiVersion: training.neuroshard.dev/v1alpha1\nkind: DLRMTrainingJob\nspec: 3\n"),
    "job-yaml": (("run", "job.yaml"), "kind: [\n"),
    "bundle": (("plan", "criteo-kaggle", *DEVICES, "--bundle", "bundle"), ""),
    "workload": (("plan", "criteo-kagle", *DEVICES), ""),
    "missing-file": (("explain", "plan.json"), ""),
}
"""The command, and the text of the first file that it names; empty: there is none."""


def test_errors_are_printed_as_in_the_file(
    neuroshard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Each error says what is wrong and where, and on a line of its own the remedy."""
    texts = {}
    for name, (command, text) in BROKEN.items():
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        if text:
            file = next(word for word in command if Path(word).suffix)
            Path(file).write_text(text, encoding="utf-8")
        texts[name] = neuroshard(*command).err

    golden(MESSAGES, sections(texts))
