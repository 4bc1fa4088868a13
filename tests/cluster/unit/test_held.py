from neuroshard_cluster.held import Row, readable


def test_a_test_is_named_by_file_and_behavior() -> None:
    """A parameter stays recognizable, so that two rows of one test differ."""
    named = readable("tests/e2e/test_lifecycle.py::test_a_job_rests_in_any_stage[Running]")

    assert named == "lifecycle: a job rests in any stage [Running]"


def test_a_row_says_what_was_checked_and_why_it_was_skipped() -> None:
    """One line of Markdown, also for a reason of several lines."""
    row = Row(
        test="faults: a node joins", sentence="It takes pods.", outcome="skipped", seconds=0.04, reason="no\nnode"
    )

    assert row.cells == "| faults: a node joins | It takes pods. | skipped: no node | 0.0 |"
    assert row.line.split() == ["skipped", "0.0", "s", "It", "takes", "pods.", "(no", "node)"]
