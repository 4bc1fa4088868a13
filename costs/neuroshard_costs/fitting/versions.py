"""Versions of the libraries that a measurement or a bundle was made with."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def library_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
