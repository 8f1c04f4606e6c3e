"""Checkpoints of a run that may have been moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint


class MovableCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that knows its best model after its folder was moved or copied.

    Lightning's own forgets it then, so that the next model, however bad, would replace it.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath)) / Path(path).name) if path else path

        moved = {key: here(value) for key, value in state_dict.items() if key.endswith("_model_path") and value}
        best = {here(path): value for path, value in state_dict.get("best_k_models", {}).items()}
        super().load_state_dict({**state_dict, **moved, "best_k_models": best, "dirpath": self.dirpath})
