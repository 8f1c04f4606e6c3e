"""`python -m eval`: what trained models can do, as tables, CSV files and plots."""
