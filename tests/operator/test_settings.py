"""Settings come from the environment, all or none."""

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_operator.settings import settings_from

IMAGES = {f"NEUROSHARD_{role}_IMAGE": f"{role.lower()}:1" for role in ("PROFILER", "PLANNER", "TRAINER")}


def test_the_images_are_enough() -> None:
    """Everything else has a default, and other variables are left alone."""
    settings = settings_from({**IMAGES, "PATH": "/bin", "NEUROSHARD_LEASE": ""})

    assert settings.planner_image == "planner:1"
    assert settings.namespaces == ()
    assert settings.lease is None


def test_numbers_switches_and_lists_are_read_from_text() -> None:
    """As a Deployment writes them."""
    given = {"NEUROSHARD_WORKERS": "3", "NEUROSHARD_READ_NODES": "false", "NEUROSHARD_NAMESPACES": "a, b"}
    settings = settings_from({**IMAGES, **given})

    assert (settings.workers, settings.read_nodes, settings.namespaces) == (3, False, ("a", "b"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NEUROSHARD_WORKERS", "many", "NEUROSHARD_WORKERS: "),
        ("NEUROSHARD_WORKERS", "0", "NEUROSHARD_WORKERS: "),
        ("NEUROSHARD_HTTP_PORT", "99999", "found '99999'"),
        ("NEUROSHARD_LOG_LEVEL", "LOUD", "NEUROSHARD_LOG_LEVEL: "),
        ("NEUROSHARD_PLANNER_MEMORY", "much", "NEUROSHARD_PLANNER_MEMORY: "),
        ("NEUROSHARD_PLANNER_IMAGE", "", "NEUROSHARD_PLANNER_IMAGE: is missing"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, said: str) -> None:
    """The sentence begins with the variable."""
    with pytest.raises(DocumentError, match="environment") as caught:
        settings_from({**IMAGES, name: value})

    assert said in str(caught.value)
