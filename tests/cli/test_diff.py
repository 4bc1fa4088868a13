"""``neuroshard diff``: files of two plans."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from support.builders import plan, request, table


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write two plans of the same tables."""
    members = [table(f"t{index}", num_embeddings=1000) for index in range(4)]
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, count in zip(paths, (2, 4), strict=True):
        path.write_text(plan(request(*members, num_devices=count)).to_json())
    return paths


def test_two_plans_are_compared_as_text_json_and_html(files: tuple[Path, Path], neuroshard: Any) -> None:
    """The three say the same bytes."""
    page = files[0].with_name("diff.html")
    text, plain = neuroshard("diff", *files, "--out", page), neuroshard("diff", *files, "--json")
    found = json.loads(plain.out)

    assert (text.code, plain.code) == (0, 0)
    assert text.err == f"report written to {page}\n"
    assert found["moved_bytes"] == sum(each["moved_bytes"] for each in found["tables"]) > 0
    assert f"{len(found['tables'])} of 4 tables" in text.out
    assert f"{len(found['tables'])} of 4 tables" in page.read_text()
    assert {each["field"] for each in found["asked"]} == {"topology.devices_per_node"}
    assert found["tables"][0]["after"]["shards"][0]["num_columns"]


def test_a_plan_does_not_differ_from_itself(files: tuple[Path, Path], neuroshard: Any) -> None:
    """And one without a price can be compared."""
    raw = json.loads(files[0].read_text())
    kept = {key: raw[key] for key in ("schema_version", "algorithm", "tables", "request")}
    files[1].write_text(json.dumps(kept))
    result = neuroshard("diff", *files)

    assert result.code == 0
    assert "none of 4 tables moves" in result.out
    assert "one of the plans has no price" in result.out


def test_a_plan_that_chose_another_type_is_compared(files: tuple[Path, Path], neuroshard: Any) -> None:
    """The table has the type that the plan gives it, and not the one that was asked for; its bytes are not counted."""
    raw = json.loads(files[0].read_text())
    raw["tables"][0]["data_type"] = "FP16"
    raw["request"]["constraints"] = {"data_types": ["FP32", "FP16"]}
    stored = {"name": "t0", "own": "FP32", "chosen": "FP16", "saved_bytes": 2 * 1000 * 64}
    raw["stored_types"] = {"tables": [stored]}
    files[1].write_text(json.dumps(raw))
    result = neuroshard("diff", *files, "--json")

    assert result.code == 0, result.err
    assert json.loads(result.out)["reshaped"] == ["t0"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("{", "is not complete JSON"),
        ('{"schema_version": "table-set/v1"}', "expected 'plan/v"),
        ("[]", "must hold a mapping"),
    ],
    ids=["missing", "cut off", "another document", "a list"],
)
def test_a_file_that_is_no_plan_is_named(
    files: tuple[Path, Path], neuroshard: Any, content: str | None, words: str
) -> None:
    """Whichever of the two it is."""
    files[1].unlink()
    if content is not None:
        files[1].write_text(content)
    for order in (files, files[::-1]):
        result = neuroshard("diff", *order)
        assert result.code == ExitCode.INVALID_INPUT
        assert f"error: {files[1]}: " in result.err
        assert words in result.err


def test_a_plan_that_contradicts_itself_is_refused(files: tuple[Path, Path], neuroshard: Any) -> None:
    """Its shards do not cover its tables."""
    raw = json.loads(files[1].read_text())
    raw["tables"][0]["shards"][0]["num_rows"] -= 1
    files[1].write_text(json.dumps(raw))
    result = neuroshard("diff", *files, "--json")

    assert result.code == ExitCode.INVALID_INPUT
    assert str(files[1]) in json.loads(result.err)["error"]


def test_a_page_that_cannot_be_written_is_told_before_the_work(files: tuple[Path, Path], neuroshard: Any) -> None:
    """With its path."""
    page = files[0].parent / "missing" / "diff.html"
    result = neuroshard("diff", *files, "--out", page)

    assert result.code == ExitCode.INVALID_INPUT
    assert "does not exist" in result.err
    assert result.out == ""
