"""How often lists repeat when runs of synthetic sessions are shuffled in their block: expected from parameters alone.

Each sample of a block of n goes to one of K open sessions by chance, and opens a new session there with the chance p;
the first one of each in the block opens one too. A sample is at place k of its session with a chance proportional to
(1 - p) ** k, and starts a run where its place is a multiple of the run's length. All others change their lists with the
chance c.

A run that follows one of its own session repeats that run's last list if no list has changed in between: after j runs
further on in the session, or back, with the chance (1 - c) ** steps. Of R runs in random order, each follows each other
one with the chance 1 / R. That counts where a block has few sessions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRuns:
    """Sessions of a block, cut into runs."""

    block_samples: int
    """n, samples of the block."""
    concurrency: int
    """K, sessions that are open at a time."""
    opening_chance: float
    """p, that a sample opens a session."""
    run: int
    """Maximum samples of a run. 0: whole sessions."""

    def distinct_share(self, change_probability: float) -> float:
        """Return expected samples whose lists differ from those of the sample before, over all samples.

        Args:
            change_probability: c, that a sample has other lists than the one before it in its session.
        """
        starts = self._run_starts()
        others = (1 - starts) * change_probability
        if self.run == 0:
            return starts + others
        num_runs = starts * self.block_samples
        share = starts - self._repeating_pairs(change_probability) / num_runs / self.block_samples + others
        return max(share, 1 / self.block_samples)  # the first sample of a block repeats nothing

    def _run_starts(self) -> float:
        """Return the share of samples that start a run."""
        used = 1 - (1 - 1 / self.concurrency) ** self.block_samples  # share of the sessions with a sample in the block
        opens = self.opening_chance
        opens += (1 - opens) * used * self.concurrency / self.block_samples
        return opens / (1 - (1 - opens) ** self.run) if self.run else opens

    def _repeating_pairs(self, change_probability: float) -> float:
        """Return expected ordered pairs of runs of one session of which the second would repeat the first's last list.

        An open session has n / K samples in the block, over all sessions that follow each other in its place.
        """
        run, kept = self.run, 1 - change_probability
        samples = round(self.block_samples / self.concurrency)
        num_runs = max(0, samples - 1) // run + 1
        further, to_others, up_to = 0.0, 0.0, [0.0]
        for later in range(1, num_runs):  # pairs of run number `later` with each before it, in both orders
            further = further * kept**run + kept  # steps from the last sample of a run to the first of a later one
            back = kept ** (2 * run - 1)  # and from the last of a later one to the first of the one before it
            to_others = to_others * kept**run + back
            alive = (1 - self.opening_chance) ** (later * run)
            up_to.append(up_to[-1] + alive * (further + to_others))
        first = up_to[num_runs - 1]
        opened = sum(up_to[(samples - 1 - place) // run] for place in range(1, samples))
        return self.concurrency * (first + self.opening_chance * opened)
