"""A bias of the keys' logits, in every attention, and the gate that learns it."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViT, ViTConfig, build_locality, grid_positions, linear_attention, softmax_attention
from performer_string.layers.backends import build_attention
from performer_string.ops import reference
from tests.helpers.maps import MAPS, compare, make_map, naive_features
from train.inspection import inspect_attention as probe_attention

B, H, N, D = 2, 3, 9, 6


def inputs():
    q, k, v = (torch.randn(B, H, N, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = (3 * torch.randn(B, H, N, dtype=torch.float64)).requires_grad_()
    mask = torch.rand(B, N) < 0.6
    mask[:, 0] = True
    return q, k, v, bias, mask


def locality():
    return build_locality("gaussian", num_heads=H, sigma=1.5).double()


@pytest.mark.parametrize("focused", [False, True], ids=["plain", "locality"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("case", MAPS, ids=str)
def test_linear_attention_is_its_definition(case, masked, focused):
    q, k, v, bias, mask = inputs()
    phi, positions = make_map(case, H, D).double(), grid_positions((3, 3), dtype=torch.float64)
    decay = locality() if focused else None
    given = {"key_mask": mask if masked else None, "key_bias": bias}
    fast = linear_attention(q, k, v, phi, locality=decay, positions=positions if focused else None, **given)
    weights = reference.linear_weights(naive_features(case, phi, q), naive_features(case, phi, k), **given)
    slow = reference.attend(weights * decay.matrix(positions) if focused else weights, v)
    compare(fast, slow, [q, k, v, bias])


@pytest.mark.parametrize("focused", [False, True], ids=["plain", "locality"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_softmax_attention_is_its_definition(masked, focused):
    q, k, v, bias, mask = inputs()
    positions, decay = grid_positions((3, 3), dtype=torch.float64), locality() if focused else None
    given = {"key_mask": mask if masked else None, "key_bias": bias}
    fast = softmax_attention(q, k, v, locality=decay, positions=positions if focused else None, **given)
    weights = reference.softmax_weights(q, k, **given)
    slow = reference.attend(weights * decay.matrix(positions) if focused else weights, v)
    compare(fast, slow, [q, k, v, bias])


@pytest.mark.parametrize("case", MAPS, ids=str)
def test_a_masked_key_has_no_say_however_large_its_bias(case):
    q, k, v, bias, _ = (x.detach().float() for x in inputs())
    bias[:, :, 4], mask = 1e4, torch.ones(B, N, dtype=torch.bool)
    mask[:, 4] = False
    phi = make_map(case, H, D)
    out = linear_attention(q, k, v, phi, key_mask=mask, key_bias=bias)
    bias[:, :, 4] = 0
    torch.testing.assert_close(out, linear_attention(q, k, v, phi, key_mask=mask, key_bias=bias))
    assert not linear_attention(q, k, v, phi, key_mask=torch.zeros_like(mask), key_bias=bias).any()


@pytest.mark.parametrize("name", ["linear", "softmax"])
def test_what_a_bias_has_to_be(name):
    sizes = {"head_dim": D, "num_heads": H, "feature_map": "favor+", "feature_options": {}, "seed": 0}
    attend, (q, k, v, _, _) = build_attention(name, **sizes), inputs()
    with pytest.raises(ValueError, match=r"key_bias has to be \[B, H, N\] = \[2, 3, 9\], not \[2, 9\]"):
        attend(q.float(), k.float(), v.float(), key_bias=torch.zeros(B, N))


GATED = [
    {"attention": "softmax"},
    {"feature_map": "favor+", "feature_options": {"num_features": 16}},
    {"feature_map": "arc-cosine", "feature_options": {"order": 3, "num_features": 16}},
]


def vit(**options) -> ViT:
    sizes = {"image_size": [16, 24], "patch_size": 4, "in_channels": 2, "num_classes": 5}
    return ViT(ViTConfig(**sizes, width=24, depth=2, num_heads=2, **options)).double()


@pytest.mark.parametrize("options", GATED, ids=lambda o: o.get("feature_map", "softmax"))
class TestGate:
    def test_it_starts_as_one_and_every_head_learns_it(self, options):
        torch.manual_seed(1)
        plain = vit(**options)
        gated = vit(**options, key_gate=True)
        gated.load_state_dict(plain.state_dict(), strict=False)
        images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
        torch.testing.assert_close(gated(images), plain(images))
        gated(images).square().sum().backward()
        for block in gated.blocks:
            assert (block.attention.gate.grad.abs().amax(-1) > 0).all()

    def test_it_weighs_keys_by_their_tokens(self, options):
        model = vit(**options, key_gate=True)
        attention = model.blocks[0].attention
        torch.nn.init.normal_(attention.gate, std=0.1)
        tokens = []
        attention.register_forward_pre_hook(lambda module, args: tokens.append(args[0]))
        images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
        gated = probe_attention(model, images)[0].weights()
        factor = (4 * (tokens[0] @ attention.gate.mT)).exp().transpose(1, 2)[:, :, None]  # [B, H, 1, N]
        attention.gate = None
        wanted = probe_attention(model, images)[0].weights() * factor
        torch.testing.assert_close(gated, (wanted / wanted.sum(-1, keepdim=True)).to(gated.dtype), rtol=1e-4, atol=1e-6)


def test_the_gates_logits_are_not_rounded_under_autocast():
    attention, tokens = vit(attention="softmax", key_gate=True).float().blocks[0].attention, torch.randn(2, 24, 24)
    gate = torch.randn_like(attention.gate)
    wanted = attention.gate_logits(tokens, gate)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention.gate_logits(tokens, gate), wanted)


def test_the_package_has_none():
    with pytest.raises(ValueError, match='performer-pytorch" has no key_gate'):
        vit(attention="performer-pytorch", key_gate=True)


@pytest.mark.parametrize("case", MAPS, ids=str)
def test_a_normalised_locality_and_a_bias(case):
    q, k, v, bias, mask = inputs()
    phi, positions = make_map(case, H, D).double(), grid_positions((3, 3), dtype=torch.float64)
    table = build_locality("table", num_heads=H, grid=(3, 3)).double()
    torch.nn.init.normal_(table.bias)
    out = linear_attention(q, k, v, phi, locality=table, positions=positions, key_mask=mask, key_bias=bias)
    weights = reference.linear_weights(naive_features(case, phi, q), naive_features(case, phi, k), mask, bias)
    slow = reference.attend(reference.modulated_weights(weights, table.matrix(positions), True), v)
    compare(out, slow, [q, k, v, bias, table.bias])


@pytest.mark.parametrize("tokens", [200, 600], ids=["whole", "window"])
def test_keys_that_are_all_light_are_seen_under_a_normalised_locality(tokens):
    """As softmax sees them: the factor that all keys in reach have cancels, however small."""
    q, k, v = 0.3 * torch.randn(3, 1, 1, tokens, D)
    bias = torch.zeros(1, 1, tokens)
    bias[..., tokens // 2 :] = -65.0
    given = {"locality": build_locality("gaussian", num_heads=1, sigma=2.0, normalised=True)}
    given |= {"positions": grid_positions((tokens,)), "key_bias": bias}
    phi, far = make_map(("favor+", {"num_features": 512}), 1, D), slice(tokens // 2 + 50, None)
    out = linear_attention(q, k, v, phi, **given)[:, :, far]
    exact = softmax_attention(q, k, v, **given)[:, :, far]
    assert (out - exact).norm() < 0.3 * exact.norm()


def test_the_bias_of_softmax_needs_no_square_matrix():
    """Neither as a mask nor as the gradient of one."""
    tokens, sizes = 128, []
    q, k, v = (torch.randn(1, 2, tokens, 8, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 2, tokens, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        out = softmax_attention(q, k, v, key_bias=bias)
    out.sum().backward()
    assert bias.grad is not None
    assert max(sizes) < tokens**2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_large_bias_is_not_rounded_in_low_precision(dtype):
    q, k, v, bias, _ = (x.detach() for x in inputs())
    q, k, v, bias = q.to(dtype), k.to(dtype), v.to(dtype), 10 + bias
    wanted = reference.attend(reference.softmax_weights(q.double(), k.double(), key_bias=bias), v.double())
    out = softmax_attention(q, k, v, key_bias=bias.float()).double()
    assert float((out - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.parametrize("focused", [False, True], ids=["plain", "locality"])
def test_softmax_does_not_see_what_all_biases_share(focused):
    q, k, v, bias, mask = (x.detach() for x in inputs())
    given = {"locality": locality(), "positions": grid_positions((3, 3), dtype=torch.float64)} if focused else {}
    for key_mask in (None, mask):
        far = [softmax_attention(q, k, v, key_bias=bias + c, key_mask=key_mask, **given) for c in (0.0, -2e4, 2e4)]
        torch.testing.assert_close(far[1], far[0])
        torch.testing.assert_close(far[2], far[0])


@pytest.mark.parametrize("kind", ["plain", "gaussian", "table"])
def test_small_weights_have_room_in_half_precision(kind):
    """A key of little weight that a query asks for, beside one of much weight that it does not."""
    phi = make_map(("favor+", {}), 1, 8, 16)
    q, k = torch.zeros(2, 1, 1, 2, 8, dtype=torch.float16)
    q[..., 0], k[..., 0, 0], k[..., 1, 0] = -8, 8, -8
    decay = {
        "plain": {},
        "gaussian": {"locality": build_locality("gaussian", num_heads=1)},
        "table": {"locality": build_locality("table", num_heads=1, grid=(1, 2))},
    }[kind]
    given = {**decay, **({"positions": grid_positions((1, 2))} if decay else {})}
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 1, 2, 8).half(), torch.tensor([[[20.0, 0.0]]]))]
    out = linear_attention(*leaves[:3], phi, key_bias=leaves[3], **given)
    assert out.dtype == torch.float16
    exact = linear_attention(*(x.float() for x in leaves[:3]), phi, key_bias=leaves[3], **given)
    torch.testing.assert_close(out.float(), exact, rtol=0.01, atol=0.01)
    for x in torch.autograd.grad(out.float().sum(), leaves):
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("focused", [False, True], ids=["plain", "locality"])
def test_a_bias_of_minus_infinity_takes_a_key_out(focused):
    q, k, v, bias, mask = (x.detach() for x in inputs())
    given = {"locality": locality(), "positions": grid_positions((3, 3), dtype=torch.float64)} if focused else {}
    out = softmax_attention(q, k, v, key_bias=bias.masked_fill(~mask[:, None], -torch.inf), **given)
    torch.testing.assert_close(out, softmax_attention(q, k, v, key_bias=bias, key_mask=mask, **given))


def test_biases_that_are_all_minus_infinity_leave_finite_numbers():
    q, k, v = torch.randn(3, B, H, N, D)
    bias = torch.full((B, H, N), -torch.inf)
    assert torch.isfinite(softmax_attention(q, k, v, key_bias=bias)).all()
    assert torch.isfinite(linear_attention(q, k, v, make_map(("favor+", {}), H, D), key_bias=bias)).all()


def test_a_bias_beside_logits_of_a_very_small_scale_in_half_precision():
    q, k, v, bias, _ = (x.detach().float() for x in inputs())
    q, k, v = q.half(), k.half(), v.half()
    out = softmax_attention(q, k, v, key_bias=bias, scale=2.0**-17)
    weights = reference.softmax_weights(q.float(), k.float(), 2.0**-17, key_bias=bias)
    torch.testing.assert_close(out.float(), reference.attend(weights, v.float()), rtol=0, atol=0.01)
