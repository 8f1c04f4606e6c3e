"""Data: generated tasks and stored images, behind one data module."""
