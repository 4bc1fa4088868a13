"""The one error of this package, which handlers of TorchRec's planner errors catch too."""

from neuroshard_api.process.exit_codes import ExitCode
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType


class DropInError(PlannerError):  # type: ignore[misc] # torchrec has no types
    """The model, the devices or the constraints cannot be planned; the message is one sentence."""

    exit_code = ExitCode.INVALID_INPUT

    def __init__(self, message: str) -> None:
        super().__init__(message, PlannerErrorType.INPUT_VALIDATION)
