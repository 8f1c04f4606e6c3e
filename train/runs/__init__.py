"""The folder of a run: where it is, what is recorded in it, and how it goes on."""
