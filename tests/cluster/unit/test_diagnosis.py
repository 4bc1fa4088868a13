import json
from pathlib import Path

from neuroshard_cluster.diagnosis import audited


def test_only_lines_of_the_namespace_are_kept(tmp_path: Path) -> None:
    """Other namespaces, and requests about no object, are left out."""
    log = tmp_path / "audit.log"
    entries = [{"objectRef": {"namespace": "a"}}, {"objectRef": {"namespace": "b"}}, {"verb": "create"}]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))

    assert [json.loads(line) for line in audited(log, "a")] == entries[:1]
    assert not list(audited(tmp_path / "none", "a"))
