"""Lightning callbacks: checkpoints, checks, clean stops, measurements, records and figures."""
