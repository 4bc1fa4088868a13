"""Lower bounds on the cost of every plan of a problem."""
