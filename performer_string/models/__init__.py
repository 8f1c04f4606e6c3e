"""The Vision Transformer, its configuration, and what is done with a whole model."""
