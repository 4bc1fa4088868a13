"""The images that tests run, and where their Dockerfiles are. The rooms' are targets of one Dockerfile."""

from dataclasses import dataclass
from pathlib import Path

from neuroshard_cluster.folders import SOURCES


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """One target of a Dockerfile, which takes its base as `ARG BASE_IMAGE`."""

    name: str
    dockerfile: Path
    context: Path
    target: str | None = None
    """The stage to build. If unset: the last one."""

    @property
    def tag(self) -> str:
        """The name that pods give. Not `latest`, which kubelets would look for in a registry."""
        return f"localhost/neuroshard/{self.name}:test"


ROOT = SOURCES.parent.parent
ROOMS = ("operator", "planner", "profiler", "trainer")
"""The rooms that have an image of their own; the chart names the images so."""

PROBE = Image(name="probe", dockerfile=SOURCES / "probe" / "Dockerfile", context=SOURCES / "probe")
OPERATOR, PLANNER, PROFILER, TRAINER = (
    Image(name=room, dockerfile=ROOT / "Dockerfile", context=ROOT, target=room) for room in ROOMS
)
IMAGES = {image.name: image for image in (PROBE, OPERATOR, PLANNER, PROFILER, TRAINER)}
