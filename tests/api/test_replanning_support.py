"""Which jobs and changes get candidate plans, and which candidates are taken without approval."""

import pytest
from neuroshard_api.documents.input_statistics import FeatureStatistics
from neuroshard_api.job.replanning import ReplanningMode
from neuroshard_api.replanning.support import replanning_policy, unsupported_inputs
from support import builders
from support.trainer import training_builders


@pytest.mark.parametrize(
    ("launch_policy", "mode", "found"),
    [
        ("Auto", "Auto", "Auto"),
        ("Manual", "Auto", "Suggest"),
        ("Manual", "Suggest", "Suggest"),
        ("Manual", "Off", "Off"),
    ],
)
def test_launch_policy_manual_takes_no_candidate_without_approval(launch_policy: str, mode: str, found: str) -> None:
    """Mode Auto is Suggest there; Off stays Off."""
    job = builders.job(launchPolicy=launch_policy, replanning={"mode": mode, "maxReplans": 7})
    policy = replanning_policy(job.spec)

    assert (policy.mode, policy.max_replans) == (ReplanningMode(found), 7)


@pytest.mark.parametrize(
    ("changed", "left_out", "words"),
    [
        (("user",), None, None),
        (("user", "item"), ("user",), None),
        ((), ("user",), None),
        (("user",), ("item", "user"), "only deduplicated features changed ('user')"),
        (("a", "b", "c", "user"), ("a", "b", "c", "user"), "changed ('a', 'b', 'c' and 1 more)"),
    ],
)
def test_changes_of_deduplicated_features_alone_are_unsupported(
    changed: tuple[str, ...], left_out: tuple[str, ...] | None, words: str | None
) -> None:
    """The reason names them; one other feature that changed is enough for a candidate."""
    features = tuple(
        FeatureStatistics(
            feature=name, lookups_per_sample=1.0, distinct_rows_per_lookup=1.0, distinct_lists_per_sample=1.0
        )
        for name in ("a", "b", "c", "item", "user")
    )
    why = unsupported_inputs(
        training_builders.input_statistics(features=features, changed_features=changed, without_repeats=left_out)
    )

    assert (why is None) == (words is None)
    assert words is None or words in str(why)
