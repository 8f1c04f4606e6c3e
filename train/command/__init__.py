"""From a typed command to a training: arguments, recipes, checks before it begins, and errors in one line."""
