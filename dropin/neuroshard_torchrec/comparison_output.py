"""A comparison of plans for people: the table that `neuroshard compare-training` prints, and its plot."""

from pathlib import Path

import torch.distributed as dist
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_api.process.atomic_file import write_whole
from neuroshard_report.html.rounds_plot import rounds_plot
from neuroshard_report.terminal.printing import print_content
from neuroshard_report.terminal.training_comparison import render_training_comparison

from neuroshard_torchrec.errors import DropInError


def show_comparison(found: TrainingComparison, *, plot: Path | str | None = None) -> None:
    """Print a comparison as a table, on rank 0 alone; other ranks do nothing.

    Args:
        found: of compare_training.
        plot: file for the rounds' step times (SVG). None: there is no plot.

    Raises:
        DropInError: on rank 0: the plot cannot be written.
    """
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    print_content(render_training_comparison(found))
    if plot is None:
        return
    try:
        write_whole(Path(plot), rounds_plot(found))
    except OSError as error:
        raise DropInError(f"plot: {plot} cannot be written: {error.strerror}; hint: give the path of a file") from error
