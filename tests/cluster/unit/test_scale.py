from neuroshard_cluster.scale import quantile_s

HISTOGRAM = {("POST", 0.005): 90.0, ("POST", 0.1): 99.0, ("POST", float("inf")): 100.0}


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    """Half of the requests stayed below the first bound, 99 of 100 below the second."""
    assert quantile_s({}, HISTOGRAM, "POST", 0.5) == (100, 0.005)
    assert quantile_s({}, HISTOGRAM, "POST", 0.99) == (100, 0.1)


def test_only_what_came_between_two_looks_counts() -> None:
    """Requests from before the first look are taken off."""
    assert quantile_s(HISTOGRAM, HISTOGRAM, "POST", 0.5) == (0, 0.0)
