"""What all parts of training and evaluation use: errors in one line, output, seeds, YAML files, imports by name."""
