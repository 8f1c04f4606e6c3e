"""Lightning callbacks: control of a run, what is measured on the way, and figures for TensorBoard."""
