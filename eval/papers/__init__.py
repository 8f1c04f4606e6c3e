"""Tables of papers, and of this project, run again by one command each: `python -m eval table NAME`."""
