"""MultiheadAttention: torch's own layer is the reference with softmax, the dense definition with linear attention."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from performer_string import MultiheadAttention, build_encoding, grid_positions
from performer_string.ops.reference import attend, linear_weights, positive_features

OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 6, "vdim": 10, "batch_first": True},
]


def pair(**options) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Return the layer with softmax and that of torch, with the same weights of order one."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(16, 2, **options)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.4)
    mine = MultiheadAttention(16, 2, attention="softmax", **options)
    mine.load_state_dict(theirs.state_dict())
    return mine.double(), theirs.double()


def tensors(options: dict, n: int = 5, m: int = 7) -> list[torch.Tensor]:
    shapes = [(n, 16), (m, options.get("kdim", 16)), (m, options.get("vdim", 16))]
    order = (lambda length: (3, length)) if options.get("batch_first") else (lambda length: (length, 3))
    return [torch.randn(*order(length), width, dtype=torch.float64, requires_grad=True) for length, width in shapes]


@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_softmax_is_torchs_layer(options, padding):
    """Outputs, weights and every gradient, in cross attention with padded keys."""
    mine, theirs = pair(**options)
    inputs = tensors(options)
    mask = None
    if padding is not None:
        mask = torch.zeros(3, 7, dtype=torch.bool)
        mask[0, 5:] = mask[2, 1:] = True
    if padding == "float":
        mask = torch.randn(3, 7, dtype=torch.float64).masked_fill(mask, -torch.inf)
    for average in (True, False):
        outputs = [
            layer(*inputs, key_padding_mask=mask, need_weights=True, average_attn_weights=average)
            for layer in (mine, theirs)
        ]
        for got, wanted in zip(*outputs, strict=True):
            torch.testing.assert_close(got, wanted)
    weight = torch.randn_like(outputs[0][0])
    parameters = [dict(layer.named_parameters()) for layer in (mine, theirs)]
    gradients = [
        torch.autograd.grad((out * weight).sum(), [*inputs, *(p[name] for name in parameters[1])])
        for (out, _), p in zip(outputs, parameters, strict=True)
    ]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)


def test_linear_attention_is_its_definition():
    """With a mask, and the weights are those that make the outputs."""
    layer = MultiheadAttention(16, 2, batch_first=True, feature_options={"num_features": 32}).double()
    x, mask = torch.randn(2, 6, 16).double(), torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = True
    out, weights = layer(x, x, x, mask, need_weights=True, average_attn_weights=False)
    q, k, v = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (q, k, v))
    features = [positive_features(y, layer.backend.phi.projection, 8**-0.5) for y in (q, k)]
    expected = linear_weights(*features, key_mask=~mask)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(out, layer.out_proj(attend(expected, v).transpose(1, 2).flatten(2)))
    assert layer(x, x, x)[1] is None


def test_one_sample_without_a_batch():
    mine, theirs = pair()
    inputs = [x[:, 0] for x in tensors({})]
    mask = torch.tensor([False] * 5 + [True] * 2)
    for got, wanted in zip(mine(*inputs, mask, True), theirs(*inputs, mask, True), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_rotation():
    layer = MultiheadAttention(16, 2, batch_first=True)
    rotation = build_encoding("rope", head_dim=8, num_heads=2)(grid_positions((2, 3)))
    x = torch.randn(2, 6, 16)
    assert (layer(x, x, x, rotation=rotation)[0] - layer(x, x, x)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("nested", [False, True])
def test_torchs_encoder_calls_the_layer(nested):
    """It has a fast path in evaluation, which computes softmax attention from the weights of its layer."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    plain = copy.deepcopy(encoder).eval()
    encoder.self_attn = MultiheadAttention(16, 2, batch_first=True, feature_options={"num_features": 8})
    encoder.self_attn.load_state_dict(plain.self_attn.state_dict())
    model = (nn.TransformerEncoder(encoder, 1) if nested else encoder).eval()
    x, mask = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = True
    slow = model.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        fast = model.eval()(x, src_key_padding_mask=mask)
        torch.testing.assert_close(fast, slow.detach())
        assert (fast - plain(x, src_key_padding_mask=mask)).abs().max() > 1e-3


def test_an_encoder_of_torch_that_nests_its_inputs():
    """One that was built before its layers were exchanged: torch looks at its layers in the constructor alone."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 1).eval()
    encoder.layers[0].self_attn = MultiheadAttention(16, 2, batch_first=True)
    x, mask = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = True
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"encoder\.use_nested_tensor = False"):
            encoder(x, src_key_padding_mask=mask)
        encoder.use_nested_tensor = False
        assert encoder(x, src_key_padding_mask=mask).isfinite().all()


def test_weights_go_both_ways():
    mine, theirs = MultiheadAttention(16, 2), nn.MultiheadAttention(16, 2)
    before = mine.backend.phi.projection.clone()
    whole = nn.Sequential(mine)
    whole.load_state_dict({f"0.{name}": x for name, x in theirs.state_dict().items()})  # strict
    assert torch.equal(mine.in_proj_weight, theirs.in_proj_weight)
    assert torch.equal(mine.backend.phi.projection, before)
    assert theirs.load_state_dict(mine.state_dict(), strict=False).unexpected_keys == ["backend.phi.projection"]
    other = MultiheadAttention(16, 2, seed=5)
    other.load_state_dict(mine.state_dict())
    assert torch.equal(other.backend.phi.projection, before)


@pytest.mark.parametrize("assign", [False, True], ids=["to_empty", "assign"])
@pytest.mark.parametrize("learned", [False, True], ids=["drawn", "learned"])
def test_weights_of_torch_in_a_layer_of_the_meta_device(assign, learned):
    """Its features were uninitialised memory, or still without values, and loading said that all is well."""
    options, theirs = {"seed": 5, "feature_options": {"learned": learned}}, nn.MultiheadAttention(16, 2).bfloat16()
    mine = MultiheadAttention(16, 2, device="meta", dtype=torch.bfloat16, **options)
    if not assign:
        mine = mine.to_empty(device="cpu")
    mine.load_state_dict(theirs.state_dict(), assign=assign)
    expected = MultiheadAttention(16, 2, **options).backend.phi.projection
    assert torch.equal(mine.backend.phi.projection, expected.bfloat16())


def test_features_of_a_state_dict_come_before_those_of_the_seed():
    """Also on the meta device, where the layer has no draw of its own."""
    trained, mine = MultiheadAttention(16, 2, seed=1), MultiheadAttention(16, 2, seed=5, device="meta")
    mine.load_state_dict(trained.state_dict(), assign=True)
    assert torch.equal(mine.backend.phi.projection, trained.backend.phi.projection)


def test_a_package_that_draws_by_itself_has_no_features_on_the_meta_device():
    mine = MultiheadAttention(16, 2, attention="performer-pytorch").to("meta")
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) .* \"backend.fast.projection_matrix\""):
        mine.load_state_dict(nn.MultiheadAttention(16, 2).state_dict(), assign=True)


def test_what_is_refused():
    x, layer = torch.randn(4, 1, 16), MultiheadAttention(16, 2)
    with pytest.raises(ValueError, match=r"dropout=0\.1 drops attention weights"):
        MultiheadAttention(16, 2, 0.1)
    with pytest.raises(ValueError, match="attn_mask masks pairs of tokens"):
        layer(x, x, x, attn_mask=torch.zeros(4, 4))
    with pytest.raises(ValueError, match="is_causal masks pairs of tokens"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match=r"key_padding_mask must be \[B, N\] = \[1, 4\], True or -inf for keys that"):
        layer(x, x, x, key_padding_mask=torch.zeros(4, 1, dtype=torch.bool))
    for dtype in (torch.uint8, torch.int64):  # ones were added to the logits
        with pytest.raises(TypeError, match=f"key_padding_mask must be boolean, .* not {dtype}"):
            layer(x, x, x, key_padding_mask=torch.ones(1, 4, dtype=dtype))
    with pytest.raises(ValueError, match="Did you mean 'favor\\+'"):
        MultiheadAttention(16, 2, feature_map="favor")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_inputs_that_do_not_fit_are_refused(attention, batch_first):
    """Torch's layer refuses them. This one took another number of values, and of samples, without a word."""
    layer = MultiheadAttention(16, 2, attention=attention, feature_map="elu", batch_first=batch_first)
    x = torch.randn(2, 7, 16)

    def call(*inputs):
        return layer(*(each if batch_first or each.ndim != 3 else each.transpose(0, 1) for each in inputs))[0]

    assert call(x, x[:, :3], x[:, :3]).numel() == x.numel()
    one_value_less, one_sample = (x, x, x[:, :6]), (x, x[:1], x[:1])
    for inputs in (one_value_less, one_sample, (x[:1], x, x), (x[0], x, x), (x[None],) * 3, (x, x, x[..., :8])):
        with pytest.raises(ValueError, match=r"query, key and value must be .*, all with B or none, not"):
            call(*inputs)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_cross_attention_at_two_sets_of_positions(attention):
    """Scores are q^T R(r_i)^T R(r_j) k, by the matrices of the encoding."""
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 2, attention=attention, feature_map="elu", batch_first=True).double()
    encoding = build_encoding("circulant-string", head_dim=8, num_heads=2).double()
    nn.init.normal_(next(encoding.parameters()))
    x, y = torch.randn(3, 5, 16, dtype=torch.float64), torch.randn(3, 7, 16, dtype=torch.float64)
    at_queries, at_keys = encoding(torch.rand(5, 2).double()), encoding(torch.rand(7, 2).double())
    out, weights = layer(x, y, y, rotation=at_queries, key_rotation=at_keys, need_weights=True)
    q, k, v = layer.project(x, y, y)
    if attention == "softmax":
        q, k = ((r.matrix() @ each[..., None])[..., 0] for r, each in ((at_queries, q), (at_keys, k)))
        expected = (q @ k.mT / 8**0.5).softmax(-1)
    else:  # by features at the rotated vectors, up to the common orthogonal factor
        expected = linear_weights(*layer.backend.phi.pair(at_queries.rotate(q), at_keys.rotate(k)))
    torch.testing.assert_close(weights, expected.mean(1))
    torch.testing.assert_close(out, layer.out_proj((expected @ v).transpose(1, 2).flatten(2)))


def test_rotations_of_two_sets_of_positions_that_are_not_both_given():
    layer, x, y = MultiheadAttention(16, 2, batch_first=True), torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    encoding = build_encoding("rope", head_dim=8, num_heads=2)
    at_queries, at_keys = encoding(torch.rand(5, 2)), encoding(torch.rand(7, 2))
    with pytest.raises(ValueError, match="pass key_rotation="):
        layer(x, y, y, rotation=at_queries)
    with pytest.raises(ValueError, match="pass rotation="):
        layer(x, y, y, key_rotation=at_keys)
    with pytest.raises(ValueError, match="of 5 positions and not of 7"):
        layer(x, y, y, rotation=at_queries, key_rotation=at_queries)


def test_a_rotation_leaves_the_extra_key_where_it_is():
    """The learned key of `add_bias_kv` has no position, as a prefix token at the origin has none."""
    mine, _ = pair(add_bias_kv=True, batch_first=True)
    x, positions = torch.randn(2, 5, 16).double(), grid_positions((1, 5)).double()
    encoding = build_encoding("rope", head_dim=8, num_heads=2).double()
    out = mine(x, x, x, rotation=encoding(positions))[0]
    moved = mine(x, x, x, rotation=encoding(positions + 3.0))[0]
    assert out.shape == x.shape
    assert not torch.allclose(out, moved, atol=1e-4)  # a key at the origin tells where the others are
    plain, _ = pair(batch_first=True)
    torch.testing.assert_close(
        plain(x, x, x, rotation=encoding(positions))[0], plain(x, x, x, rotation=encoding(positions + 3.0))[0]
    )
