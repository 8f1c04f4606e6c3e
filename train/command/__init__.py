"""The command line of training: arguments, recipes, early checks, and errors in one line."""
