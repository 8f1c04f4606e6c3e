"""The Vision Transformer, its configuration, and operations on a whole model."""
