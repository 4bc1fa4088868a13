"""From records of measurements to a bundle of cost models with its error. Needs torch only for networks."""
