"""Other models made of a trained one: folded, narrower, with another encoding, and models of timm."""
