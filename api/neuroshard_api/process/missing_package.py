"""What a command says where a package is not installed. Imports nothing but the standard library."""


def missing_package(error: ImportError, *, extra: str) -> str:
    """Return the name of the missing package and the command that installs it.

    Args:
        error: what the import ended with.
        extra: of this distribution, which brings the package.
    """
    package = (error.name or str(error)).partition(".")[0]
    install = f"pip install 'neuroshard-operator[{extra}]'"
    return f"this command needs the package {package}, which is not installed; hint: try {install}"
