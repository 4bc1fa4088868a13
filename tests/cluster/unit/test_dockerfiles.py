"""Which stages of a Dockerfile an image is built from."""

import pytest
from neuroshard_cluster.dockerfiles import stages_below
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.images import PLANNER, PROBE, ROOMS, ROOT, TRAINER

FILES = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS tools
FROM tools AS built
FROM ${BASE_IMAGE} AS unused
FROM ${BASE_IMAGE}
COPY --from=built /a /a
"""


def test_a_target_needs_its_bases_and_what_it_copies_from() -> None:
    """The stages are in the order of the file, so that each is built after those that it needs."""
    rooms = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert stages_below(FILES, None) == ("tools", "built")
    assert stages_below(FILES, "built") == ("tools",)
    assert stages_below(rooms, "planner") == ("base", "installer", "planner-packages")
    assert stages_below(rooms, "profiler") == stages_below(rooms, "trainer") == ("base", "installer", "torch")


def test_an_unknown_target_is_rejected_with_the_known_ones() -> None:
    """A misspelled room does not build the last stage of the file."""
    with pytest.raises(HostError, match=r"no stage 'plan', only: base, .*, trainer"):
        stages_below((ROOT / "Dockerfile").read_text(encoding="utf-8"), "plan")


def test_each_room_is_a_target_and_the_probe_is_a_whole_file() -> None:
    """All rooms are built from one file, the other images of the tests each from its own."""
    assert [image.target for image in (PLANNER, TRAINER, PROBE)] == ["planner", "trainer", None]
    assert {stages_below(PROBE.dockerfile.read_text(encoding="utf-8"), None)} == {()}
    assert all(stages_below((ROOT / "Dockerfile").read_text(encoding="utf-8"), room) for room in ROOMS)
