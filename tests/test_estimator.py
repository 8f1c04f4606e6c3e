"""What is measured of a trained model's attention, and interventions on it that have to leave no trace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from saved import CONFIG, read, save
from torch import Tensor

from eval import dense
from eval.__main__ import main
from eval.dense import ExpectedKernel
from eval.estimator import statistics, summary, variation
from eval.interventions import blank_patches, interventions
from performer_string import ViT, ViTConfig, grid_positions
from performer_string.attend import build_attention
from performer_string.attention import rotate_pair
from train.probe import Probe, probe_attention

POSITIONS = grid_positions((3, 4))
MODELS = {
    "relu": {"feature_map": "relu", "feature_options": {"order": 2, "num_features": 8}},
    "favor+": {"feature_map": "favor+", "feature_options": {"num_features": 8}},
    "polynomial": {"feature_map": "polynomial", "feature_options": {"lower": True}},
    "softmax": {"attention": "softmax"},
    "performer-pytorch": {"attention": "performer-pytorch", "feature_options": {"num_features": 8}},
}


def model(kind: str = "relu", **changes) -> ViT:
    """With weights that are large enough for attention to reach the logits."""
    torch.manual_seed(0)
    vit = ViT(replace(CONFIG, depth=2, encoding="rope-mixed", registers=1, **{**MODELS[kind], **changes})).eval()
    for p in vit.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return vit


def sparse_images(cells: int, glyphs: int = 6) -> Tensor:
    """Two images of cells x cells patches of 12 pixels, all but some of them blank."""
    images = torch.zeros(2, 1, 12 * cells, 12 * cells)
    for image in images[:, 0]:
        for cell in torch.randperm(cells * cells)[:glyphs].tolist():
            y, x = 12 * (cell // cells), 12 * (cell % cells)
            image[y : y + 12, x : x + 12] = torch.randn(12, 12)
    return images


def of_weights(weights: Tensor, blank: Tensor | None = None) -> dict[str, Tensor]:
    """Statistics of an attention that has these weights [P + N, P + N] in every image and head."""

    class Fixed(torch.nn.Module):
        def weights(self, q, k, rotation=None, key_bias=None):
            return weights[-12:].expand(2, 3, 12, -1)

    q, k = torch.randn(2, 2, 3, len(weights), 4)
    blank = torch.zeros(2, 12, dtype=torch.bool) if blank is None else blank
    return statistics(Probe(Fixed(), q, k, None), torch.arange(12), POSITIONS, blank)


@pytest.mark.parametrize("prefix", [0, 2])
def test_statistics_of_attention_that_is_known(prefix):
    n = 12 + prefix
    blank = torch.arange(12).expand(2, 12) < 3
    uniform = of_weights(torch.full((n, n), 1 / n), blank)
    assert {value.shape for value in uniform.values()} == {(2, 3)}
    torch.testing.assert_close(uniform["entropy"], torch.full((2, 3), math.log(n)))
    torch.testing.assert_close(uniform["entropy / log N"], torch.ones(2, 3))
    torch.testing.assert_close(uniform["top share"], torch.full((2, 3), 1 / n))
    torch.testing.assert_close(uniform["weight on blanks"], torch.full((2, 3), 3 / n))
    torch.testing.assert_close(uniform["distance"], torch.cdist(POSITIONS, POSITIONS).mean().expand(2, 3))
    itself = of_weights(torch.eye(n))
    for name, value in {"entropy": 0, "top share": 1, "distance": 0, "weight on blanks": 0}.items():
        torch.testing.assert_close(itself[name], torch.full((2, 3), float(value)), rtol=1e-5, atol=1e-5)
    neighbour = of_weights(torch.eye(n).roll(1, dims=1)[:, :])  # row i looks at i + 1, in rows of four
    steps = (POSITIONS - POSITIONS.roll(-1, dims=0)).norm(dim=-1)[: 12 - 1]
    if not prefix:
        steps = torch.cat([steps, (POSITIONS[-1] - POSITIONS[0]).norm()[None]])
        torch.testing.assert_close(neighbour["distance"], steps.mean().expand(2, 3))


def test_norms_and_their_quantiles():
    k = torch.randn(2, 3, 14, 4)
    attend = build_attention("softmax", head_dim=4, num_heads=3, feature_map="", seed=0, feature_options={})
    blank = torch.arange(12).expand(2, 12) < 3
    found = statistics(Probe(attend, 2 * k, k, None), torch.arange(5), POSITIONS, blank)
    norms = k.norm(dim=-1)
    torch.testing.assert_close(found["q norm"], 2 * norms.mean(-1))
    torch.testing.assert_close(found["k norm"], norms.mean(-1))
    torch.testing.assert_close(found["k norm, 50%"], norms.sort(-1).values[..., 6:8].mean(-1))
    torch.testing.assert_close(found["k norm of blanks"], norms[..., 2:5].mean(-1))
    for name in ("TV to softmax", "TV to expected", "TV expected to softmax"):
        assert found[name].max() < 1e-6
    top = attend.weights(2 * k, k)[:, :, 2:7].amax(-1).mean(-1)  # the rows of patches, past the prefix
    torch.testing.assert_close(found["top share"], top)


def test_total_variation():
    one, two = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    assert variation(one, two).tolist() == [0.25, 1.0]


def test_another_kernel_and_the_variance_of_a_draw_are_told_apart():
    q, k = torch.randn(2, 4, 8, 12, 6) * 0.5
    blank = torch.zeros(4, 12, dtype=torch.bool)

    def found(name: str, **options) -> dict[str, float]:
        attend = build_attention("linear", head_dim=6, num_heads=8, feature_map=name, seed=0, feature_options=options)
        values = statistics(Probe(attend, q, k, None), torch.arange(12), POSITIONS, blank)
        return {key.removeprefix("TV "): float(value.mean()) for key, value in values.items() if "TV" in key}

    few, many = (found("favor+", num_features=m) for m in (64, 64 * 64))
    assert many["to expected"] == pytest.approx(few["to expected"] / 8, rel=0.35)
    assert max(few["expected to softmax"], many["expected to softmax"]) < 1e-6
    few, many = (found("relu", num_features=m, order=2) for m in (64, 64 * 64))
    assert many["to expected"] == pytest.approx(few["to expected"] / 8, rel=0.35)
    assert few["expected to softmax"] > 0.1
    assert many["to softmax"] == pytest.approx(many["expected to softmax"], abs=0.02)
    exact = found("polynomial", lower=True)
    assert exact["to expected"] < 1e-5
    assert exact["to softmax"] > 1e-3


@pytest.mark.parametrize("kind", ["relu", "favor+", "polynomial"])
def test_the_expected_kernel_is_the_limit_of_many_features(kind, monkeypatch):
    monkeypatch.setattr(dense, "ROWS", 5)  # parts that do not divide the tokens
    options = {**MODELS[kind]["feature_options"], **({} if kind == "polynomial" else {"num_features": 2**15})}
    attend = build_attention("linear", head_dim=6, num_heads=2, feature_map=kind, seed=0, feature_options=options)
    q, k, v = torch.randn(3, 2, 2, 12, 6) * 0.5
    rotation = model().encoding.by_layer(POSITIONS)[0]
    rotation.head_dim, rotation.cos, rotation.sin = 6, rotation.cos[..., :3], rotation.sin[..., :3]
    mask = torch.rand(2, 12) < 0.7
    for key_mask in (None, mask):
        many = attend(q, k, v, rotation=rotation, key_mask=key_mask)
        exact = ExpectedKernel(attend.phi)(q, k, v, rotation=rotation, key_mask=key_mask)
        torch.testing.assert_close(exact, many, rtol=0, atol=0.03)
        assert (many - v.mean(-2, keepdim=True)).abs().max() > 0.1
    weights = ExpectedKernel(attend.phi).weights(*rotate_pair(q, k, rotation))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12))


def trace(vit: ViT) -> tuple:
    """What an intervention might leave behind."""
    modules = list(vit.modules())
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in modules)
    return [id(m) for m in modules], hooks, [getattr(m, "order", None) for m in modules]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_interventions_change_a_model_and_leave_no_trace(kind, pool):
    vit, images = model(kind, pool=pool), sparse_images(9)
    before = trace(vit)
    with torch.no_grad():
        plain = vit(images)
        state = {name: value.clone() for name, value in vit.state_dict().items()}
        for name, change in interventions(vit).items():
            with change(vit):
                assert vit(sparse_images(5)).isfinite().all()
                assert (vit(images) - plain).abs().max() > 1e-5, name
            with pytest.raises(ValueError, match="images have to be"), change(vit):
                vit(torch.zeros(1, 3, 60, 60))
            assert trace(vit) == before, name
            assert torch.equal(vit(images), plain), name
    assert all(torch.equal(value, state[name]) for name, value in vit.state_dict().items())


def test_each_kind_of_model_has_the_interventions_that_make_sense():
    groups = {kind: {name.split(",")[0] for name in interventions(model(kind))} for kind in MODELS}
    thin = {"keys thinned", "pooling thinned", "keys and pooling thinned"}
    drawn = {f"draw {i}" for i in range(5)}
    for found in groups.values():
        found.remove("near keys")
    assert groups["softmax"] == {"log N temperature", *thin}
    assert groups["polynomial"] == {"softmax", "log N temperature", *thin}
    assert groups["performer-pytorch"] == {"softmax", "log N temperature", "pooling thinned", *drawn}
    assert groups["relu"] == {
        "softmax", "expected kernel", "8 times the features", "log N temperature", *drawn, *thin
    }  # fmt: skip
    square = model("polynomial", feature_options={})
    assert not {name for name in interventions(square) if "temperature" in name or "draw" in name}
    assert "log N temperature" not in interventions(model("softmax", log_scale=True))
    assert {name.split(",")[0] for name in interventions(model("relu", pool="cls"))} == groups["relu"] - {
        "pooling thinned", "keys and pooling thinned"
    } | {"near keys"}  # fmt: skip


def same_weights(vit: ViT, config: ViTConfig) -> ViT:
    other = ViT(config).eval()
    other.load_state_dict(vit.state_dict(), strict=False)
    return other


@torch.no_grad()
def test_interventions_are_the_models_that_they_stand_for():
    images, relu, soft = sparse_images(9), model("relu"), model("softmax")
    with interventions(relu)["softmax, all layers"](relu):
        found = relu(images)
    torch.testing.assert_close(found, same_weights(relu, replace(relu.config, attention="softmax"))(images))
    with interventions(soft)["log N temperature"](soft):
        found = soft(images)
    expected = same_weights(soft, replace(soft.config, log_scale=True))(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    order = round(2 * math.log(82) / math.log(26))
    sharp = replace(relu.config, feature_options={"order": order, "num_features": 8})
    assert order == 3
    with interventions(relu)["log N temperature"](relu):
        torch.testing.assert_close(relu(images), same_weights(relu, sharp)(images))


@torch.no_grad()
def test_thinning_keeps_every_glyph_and_as_many_tokens_as_in_training():
    vit, images = model(), sparse_images(9)
    seen, tokens, pooled = [], [], []
    vit.norm.register_forward_hook(lambda module, args, out: tokens.append(out))  # before the intervention's own
    vit.head.register_forward_pre_hook(lambda module, args: pooled.append(args[0]))
    for name in ("keys and pooling thinned", "keys thinned, layer 1"):
        with interventions(vit)[name](vit):
            for attend in vit.attends():
                attend.register_forward_pre_hook(lambda module, args, kw: seen.append(kw["key_mask"]), with_kwargs=True)
            vit(images)
    kept, both, none, alone = seen[0], seen[1], seen[2], seen[-1]
    assert torch.equal(both, kept)
    assert none is None
    assert torch.equal(alone, kept)
    assert kept[:, 0].all()  # the register
    assert kept[:, 1:].sum(-1).tolist() == [25, 25]
    assert (kept[:, 1:] | blank_patches(vit, images)).all()
    assert blank_patches(vit, images).sum(-1).tolist() == [75, 75]
    mean = torch.stack([x[1:][mask[1:]].mean(0) for x, mask in zip(tokens[0], kept, strict=True)])
    torch.testing.assert_close(pooled[0], mean, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("locality", [None, "gaussian"])
@pytest.mark.parametrize("kind", ["softmax", "relu"])
def test_near_keys_are_those_with_offsets_of_the_training_grid(kind, locality):
    """A row of one layer, key by key."""
    vit, images = model(kind, locality=locality, key_gate=True), sparse_images(9)
    probe, seen = probe_attention(vit, images)[1], []
    with interventions(vit)["near keys, layer 1"](vit):
        attend = vit.attends()[1]
        attend.register_forward_hook(lambda module, args, out: seen.append((args[2], out)))
        vit(images)
    values, out = seen[0]
    positions, weights = grid_positions((9, 9)), probe.weights()
    lamb = probe.focus.matrix() if locality else torch.ones(2, 82, 82)
    for query in (0, 40, 80):
        near = [i for i in range(81) if (positions[i] - positions[query]).abs().max() <= 4]
        assert len(near) in (25, 81)
        keys = torch.tensor([0] + [1 + i for i in near])  # the register, and those
        row = weights[:, :, 1 + query, keys]
        row = row / row.sum(-1, keepdim=True) * lamb[:, 1 + query, keys]
        wanted = torch.einsum("bhk,bhkd->bhd", row, values[:, :, keys])
        torch.testing.assert_close(out[:, :, 1 + query], wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_nothing_is_thinned_at_the_training_size():
    vit, images = model(), sparse_images(5)
    plain = vit(images)
    for name, change in interventions(vit, ["thinned", "temperature", "near"]).items():
        with change(vit):
            torch.testing.assert_close(vit(images), plain, rtol=1e-4, atol=1e-5, msg=name)


def test_the_estimator_report(tmp_path, capsys):
    one = save(tmp_path / "one", replace(CONFIG, depth=2))
    two = save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    arguments = ["--resolutions", "60", "84", "--images", "6", "--queries", "9"]
    main(["estimator", "--checkpoint", str(one), str(two), *arguments])
    header, rows = read(tmp_path / "results" / "estimator.csv")
    assert "python -m eval estimator" in header[0]
    keys = [(row["model"], row["resolution"], row["layer"], row["head"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * (2 + 1) * 2
    assert {row["images"] for row in rows} == {"6"}
    assert all(float(row["TV to softmax"]) == 0 for row in rows if row["model"] == "two")
    assert all(float(row["TV to expected"]) > 0 for row in rows if row["model"] == "one")
    assert {round(float(row["share of blanks"]), 2) for row in rows if row["resolution"] == "84"} == {0.71}  # 14 of 49
    assert (tmp_path / "results" / "estimator.png").stat().st_size > 5000
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + (2 + 1) * 2
    numbers = [{**row, "TV to softmax": float(row["head"])} for row in rows]
    assert {line["TV to softmax"] for line in summary([{**n, **floats(n)} for n in numbers])} == {"0.5"}
    with pytest.raises(SystemExit):
        main(["estimator", "--checkpoint", str(one), "--resolutions", "60", "--queries", "0"])
    assert "--queries has to be 1 or more, not 0" in capsys.readouterr().err


def floats(row: dict) -> dict:
    return {"head": int(row["head"]), **{k: float(v) for k, v in row.items() if k not in ("model", "head")}}


def test_the_intervention_report(tmp_path, capsys):
    path = save(tmp_path / "one", replace(CONFIG, **MODELS["relu"]))
    arguments = ["--checkpoint", str(path), "--resolutions", "60", "84", "--images", "8"]
    main(["intervene", *arguments, "--groups", "softmax", "thinned"])
    rows = read(tmp_path / "one" / "results" / "intervene.csv")[1]
    names = ["as trained", "softmax, layer 0", "softmax, all layers"]
    names += ["keys thinned, layer 0", "keys thinned, all layers", "pooling thinned", "keys and pooling thinned"]
    assert [(row["intervention"], row["resolution"]) for row in rows] == [(n, r) for n in names for r in ("60", "84")]
    found = {(row["intervention"], row["resolution"]): row["accuracy"] for row in rows}
    assert found["keys and pooling thinned", "60"] == found["as trained", "60"]  # nothing to thin
    assert "(+0.0)" in capsys.readouterr().out
    assert (tmp_path / "one" / "results" / "intervene.png").stat().st_size > 5000
    with pytest.raises(SystemExit):
        main(["intervene", *arguments, "--groups", "sofmax"])
    assert "invalid choice: 'sofmax'" in capsys.readouterr().err
