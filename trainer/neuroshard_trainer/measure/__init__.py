"""Step times: what is measured in a training, and where it is written."""
