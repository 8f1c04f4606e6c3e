"""Settings of Lightning's trainer: precision of matrix products, and weights sharded between processes."""
