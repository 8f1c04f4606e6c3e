"""Image files and their sizes, as models are trained and validated on them. Needs torchvision and Pillow."""
