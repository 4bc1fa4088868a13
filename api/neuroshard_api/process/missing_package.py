"""What a command says where a package is not installed. Imports nothing but the standard library."""

NO_EXTRA = ""
"""In the place of an extra: the packages that the distribution itself needs."""


def missing_package(error: ImportError, *, extra: str) -> str:
    """Return the name of the missing package and the command that installs it.

    Args:
        error: what the import ended with.
        extra: of this distribution, which brings the package.
    """
    package = (error.name or str(error)).partition(".")[0]
    return f"this command needs the package {package}, which is not installed; hint: {install_hint(extra)}"


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, and where to run it: no release is published."""
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install {what} in a checkout of the repository"
