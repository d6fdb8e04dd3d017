"""Lower bounds on the cost, the time and the value of every plan of a generation step."""
