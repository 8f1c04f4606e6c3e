"""Data: the arrow task and images from torchvision, behind one data module."""
