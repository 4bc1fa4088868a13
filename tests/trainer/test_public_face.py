"""The names that trainers of one's own import."""

import subprocess
import sys

import neuroshard_trainer
import pytest


@pytest.mark.parametrize("name", neuroshard_trainer.PUBLIC_NAMES)
def test_each_public_name_is_what_its_module_defines(name: str) -> None:
    """The package hands on each name of its public face, and lists it."""
    place = sys.modules[getattr(neuroshard_trainer, name).__module__]
    assert place.__name__ == f"neuroshard_trainer.{neuroshard_trainer.PUBLIC_NAMES[name]}"
    assert name in dir(neuroshard_trainer)


def test_other_names_are_refused_as_python_does() -> None:
    """A name that is not public is an AttributeError with the name in it."""
    with pytest.raises(AttributeError, match="'TrainingLoop'"):
        _ = neuroshard_trainer.TrainingLoop


def test_the_package_alone_imports_no_torch() -> None:
    """Reader processes import the package without paying for torch."""
    check = "import sys, neuroshard_trainer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
