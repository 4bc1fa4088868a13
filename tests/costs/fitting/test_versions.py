from neuroshard_costs.fitting.versions import library_versions


def test_versions_are_those_of_installed_packages() -> None:
    """A package that is absent is not a fact."""
    assert set(library_versions(("numpy", "no-such-package"))) == {"numpy"}
