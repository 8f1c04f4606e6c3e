"""Files of a model: checkpoints, published folders with a card, and the Hugging Face Hub."""
