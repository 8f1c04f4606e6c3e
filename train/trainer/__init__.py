"""What Lightning's trainer is given: callbacks, loggers, precision, processes and generators of random numbers."""
