"""Tables of papers and of this project, reproduced by one command each: `python -m eval table NAME`."""
