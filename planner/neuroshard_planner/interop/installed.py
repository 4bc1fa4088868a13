"""Whether TorchRec is there. Imports it only to find out."""

from neuroshard_planner.errors import MissingPackageError


def require_torchrec(what: str) -> None:
    """Do nothing if torchrec can be imported. Raises MissingPackageError that says what ``what`` needs."""
    try:
        import torchrec  # noqa: F401, PLC0415
    except (ImportError, OSError) as error:  # fbgemm-gpu without a driver fails to load its libraries: OSError
        raise MissingPackageError(
            f"{what} needs TorchRec, whose import failed ({error}); "
            "install torch, then `pip install --no-deps fbgemm-gpu-cpu torchrec` and what torchrec asks for"
        ) from error
