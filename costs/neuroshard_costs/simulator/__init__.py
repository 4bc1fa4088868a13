"""The device simulator: a stand-in for a GPU, with times labelled `simulated`."""
