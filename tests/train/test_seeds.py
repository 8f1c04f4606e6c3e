"""Equal seeds pair models that differ in one thing: what both have starts with the same weights."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint

CHANGES = {
    "encoding": ["--model.vit.encoding", "cayley-string"],
    "another encoding": ["--model.vit.encoding", "rope"],
    "added encoding": ["--model.vit.encoding", "absolute"],
    "values": ["--model.vit.values", "lepe"],
    "shared layers": ["--model.vit.share_layers", "true"],
    "relative bias": ["--model.vit.locality", "gaussian"],
    "gate": ["--model.vit.key_gate", "true"],
    "registers": ["--model.vit.registers", "2"],
    "softmax": ["--model.vit.attention", "softmax"],
}


def initial_weights(config, run, *arguments: str) -> dict[str, torch.Tensor]:
    """Return the weights that a recipe starts with."""
    still = ["--model.optim.lr", "1e-30", "--model.optim.weight_decay", "0", "--model.optim.randomized_positions", "1"]
    short = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0", "--ema", "0", "--trainer.logger", "false"]
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), *still, *short, *arguments])
    return read_checkpoint(last(run))["state_dict"]


@pytest.fixture(scope="module")
def base(config, tmp_path_factory) -> dict[str, torch.Tensor]:
    return initial_weights(config, tmp_path_factory.mktemp("base") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_equal_seeds_pair_models(config, base, tmp_path, change):
    """The embedding, the projections, the MLPs and the head are the same, whatever else was drawn before them."""
    changed = initial_weights(config, tmp_path / "run", *CHANGES[change])
    common = [name for name in base if name in changed and not name.startswith("vit.encoding.")]
    linear = [name for name in common if name.endswith(".weight") and base[name].ndim == 2]
    assert len(linear) >= 2 + 2 * 4  # embedding, head; qkv, projection and two of the MLP in each layer
    for name in common:
        torch.testing.assert_close(changed[name], base[name], rtol=0, atol=1e-20, msg=name)


@pytest.mark.slow
def test_other_seeds_start_with_other_weights(config, base, tmp_path):
    other = initial_weights(config, tmp_path / "run", "--seed_everything", "4")
    assert not torch.equal(other["vit.embed.weight"], base["vit.embed.weight"])
