"""What Lightning's trainer is given: the precision of matrix products, and weights sharded between processes."""
