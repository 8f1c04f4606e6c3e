"""Results of this project: each folder has its sweep, its CSV files and figures, and a README.md with the answer."""
