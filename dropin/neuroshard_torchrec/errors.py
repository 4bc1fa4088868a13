"""The one error of this package, which handlers of TorchRec's planner errors catch too."""

from neuroshard_api.process.errors import ExpectedError
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType


class DropInError(PlannerError, ExpectedError):  # type: ignore[misc] # torchrec has no types
    """The model, the devices or the constraints cannot be planned; the message is one sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message, PlannerErrorType.INPUT_VALIDATION)
