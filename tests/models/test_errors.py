"""What does not fit is an error that says so, and never other numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from performer_string import (
    ViT,
    build_encoding,
    build_feature_map,
    build_locality,
    fold,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from tests.helpers.small_vit import vit

SHAPES = {
    "keys of one sample": ((4, 2, 10, 8), (1, 2, 10, 8), (1, 2, 10, 8)),
    "more samples of values": ((2, 2, 10, 8), (2, 2, 10, 8), (3, 2, 10, 8)),
    "longer values": ((2, 2, 10, 8), (2, 2, 10, 8), (2, 2, 15, 8)),
    "longer keys": ((2, 2, 10, 8), (2, 2, 15, 8), (2, 2, 10, 8)),
    "other heads": ((2, 2, 10, 8), (2, 1, 10, 8), (2, 1, 10, 8)),
    "wider keys": ((2, 2, 10, 8), (2, 2, 10, 9), (2, 2, 10, 8)),
    "three dimensions": ((2, 10, 8), (2, 10, 8), (2, 10, 8)),
}


def attend(kind, q, k, v, **given):
    if kind == "softmax":
        return softmax_attention(q, k, v, **given)
    options = {} if kind == "polynomial" else {"num_features": 16}
    return linear_attention(q, k, v, build_feature_map(kind, head_dim=8, num_heads=2, **options), **given)


@pytest.mark.parametrize("kind", ["favor+", "arc-cosine", "polynomial", "softmax"])
class TestAttention:
    @pytest.mark.parametrize("shapes", SHAPES.values(), ids=list(SHAPES))
    def test_queries_keys_and_values_that_do_not_fit(self, kind, shapes):
        """Chunks took the number of samples from one and wrote as many as of another."""
        with pytest.raises(ValueError, match=r"have to be \[B, H, N, d\], \[B, H, M, d\] and \[B, H, M, e\], not \["):
            attend(kind, *(torch.randn(shape) for shape in shapes))

    def test_whole_numbers(self, kind):
        """They were cut off in the output."""
        q = torch.ones(1, 2, 5, 8, dtype=torch.int64)
        with pytest.raises(TypeError, match=r"have to be floating-point, not torch.int64"):
            attend(kind, q, q, q)

    @pytest.mark.parametrize(
        ("head_dim", "positions", "message"),
        [
            (8, (3, 10, 2), r"of \(samples, heads\) \(3, 1\), and not of \(2, 2\)"),
            (8, (12, 2), "of 12 positions and not of 10"),
            (6, (10, 2), "of heads of width 6, and not of 8"),
        ],
    )
    def test_rotation_of_another_shape(self, kind, head_dim, positions, message):
        rotation = build_encoding("rope", head_dim=head_dim, num_heads=2)(torch.randn(positions))
        with pytest.raises(ValueError, match=message):
            attend(kind, *torch.randn(3, 2, 2, 10, 8), rotation=rotation)

    def test_encoding_in_place_of_its_rotation(self, kind):
        encoding = build_encoding("rope", head_dim=8, num_heads=2)
        with pytest.raises(TypeError, match=r"encoding\(positions\), not a RoPE"):
            attend(kind, *torch.randn(3, 2, 2, 10, 8), rotation=encoding)

    def test_locality_of_other_tokens(self, kind):
        given = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((2, 5))}
        q, k, v = torch.randn(3, 2, 2, 10, 8)
        with pytest.raises(ValueError, match="queries and keys of the same tokens, not 1 queries of 10 keys"):
            attend(kind, q[:, :, :1], k, v, **given)
        for num_prefix in (-1, 11):
            with pytest.raises(ValueError, match=f"between 0 and the number of tokens, 10, not {num_prefix}"):
                attend(kind, q, k, v, num_prefix=num_prefix, **given)

    def test_one_place_of_each_is_for_all(self, kind):
        """What broadcasts by right: positions alike for all samples, and heads that share their angles."""
        encoding = build_encoding("rope", head_dim=8, num_heads=2)
        q, k, v = torch.randn(3, 2, 2, 10, 8)
        positions = torch.randn(10, 2)
        one = attend(kind, q, k, v, rotation=encoding(positions))
        torch.testing.assert_close(one, attend(kind, q, k, v, rotation=encoding(positions.expand(2, -1, -1))))


@pytest.mark.parametrize("kind", ["favor+", "arc-cosine", "polynomial"])
def test_feature_map_of_other_heads(kind):
    for heads, width in ((2, 6), (3, 8)):
        with pytest.raises(ValueError, match=f"of 2 heads of width 8, the queries are of {heads} of width {width}"):
            attend(kind, *torch.randn(3, 2, heads, 10, width))


def test_the_name_of_a_feature_map_in_place_of_it():
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(TypeError, match="phi is what build_feature_map gives, not a str"):
        linear_attention(q, q, q, "favor+")


def test_positions_of_other_images():
    model, images = vit(encoding="rope-mixed"), torch.randn(2, 2, 16, 24)
    for shape in ((3, 12, 2), (1, 12, 2), (2, 1, 12, 2), (11, 2)):
        with pytest.raises(ValueError, match=r"for each of the 2 images"):
            model(images, torch.randn(shape))


class Adapter(nn.Module):
    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear, self.more = linear, nn.Linear(linear.in_features, linear.out_features)

    def forward(self, x):
        return self.linear(x) + self.more(x)


class Quantised(torch.Tensor):
    """A weight made of other tensors, that `linear` alone can use."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            x, weight, *bias = args
            return function(x, weight.inner, *bias)
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(f"Quantised has no {function}")


def quantise(attention):
    attention.qkv.weight = nn.Parameter(Quantised(attention.qkv.weight.detach()), requires_grad=False)


STANDS_FOR_IT = {
    "quantised": quantise,
    "pruned": lambda attention: prune.l1_unstructured(attention.qkv, "weight", 0.5),
    "weight norm": lambda attention: parametrizations.weight_norm(attention.qkv),
    "adapter": lambda attention: setattr(attention, "qkv", Adapter(attention.qkv)),
    "hook": lambda attention: attention.qkv.register_forward_hook(lambda module, given, out: out * 2),
    "forward": lambda attention: setattr(attention.qkv, "forward", lambda x, of=attention.qkv.forward: 2 * of(x)),
}


@pytest.mark.parametrize("change", STANDS_FOR_IT.values(), ids=list(STANDS_FOR_IT))
def test_folding_what_is_more_than_a_projection(change):
    """The model itself has it in, and a copy with the basis in the weights would not."""
    model = vit(encoding="circulant-string", attention="softmax")
    change(model.blocks[1].attention)
    assert model(torch.randn(1, 2, 16, 24)).isfinite().all()
    with pytest.raises(ValueError, match="fold needs plain projections"):
        fold(model)


@pytest.mark.parametrize("change", ["hook", "forward", "pruned"])
def test_what_stands_for_a_projection_has_its_say(change):
    model, images = vit(encoding="circulant-string", attention="softmax"), torch.randn(1, 2, 16, 24)
    before = model(images)
    STANDS_FOR_IT[change](model.blocks[1].attention)
    assert not torch.equal(model(images), before)


def test_a_quantised_projection_is_turned_behind_it():
    model, images = vit(encoding="circulant-string", attention="softmax"), torch.randn(1, 2, 16, 24)
    before = model(images)
    quantise(model.blocks[1].attention)  # to the same numbers
    torch.testing.assert_close(model(images), before)


@pytest.mark.parametrize("part", ["qkv", "block"])
def test_folding_what_two_layers_share(part):
    """It would be folded twice, with the basis of each."""
    model = vit(encoding="circulant-string", attention="softmax")
    if part == "block":
        model.blocks[1] = model.blocks[0]
    else:
        model.blocks[1].attention.qkv = model.blocks[0].attention.qkv
    with pytest.raises(ValueError, match="two layers of this model share theirs"):
        fold(model)


def test_backward_hooks_of_the_projection_are_called():
    model, called = vit(encoding="circulant-string", attention="softmax"), []
    model.blocks[0].attention.qkv.register_full_backward_hook(lambda *_: called.append(1))
    model(torch.randn(1, 2, 16, 24)).sum().backward()
    assert called


@pytest.mark.parametrize("locality", [False, True])
def test_second_derivatives_are_an_error_and_not_zero(locality):
    """Of a sum too, whose gradient is a constant: torch's own mark is for gradients that are functions."""
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = (torch.randn(1, 2, 324, 8).requires_grad_() for _ in range(3))
    given = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((18, 18))}
    out = linear_attention(q, k, v, phi, **(given if locality else {}))
    (gradient,) = torch.autograd.grad(out.sum(), v, create_graph=True)
    plain = torch.autograd.grad(linear_attention(q, k, v, phi, **(given if locality else {})).sum(), v)[0]
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(out.square().mean() + gradient.square().sum(), k)


def test_gradients_in_batches_are_an_error_that_says_what_to_do():
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = torch.randn(3, 1, 2, 5, 8)

    def attend(q):
        return linear_attention(q, k, v, phi)

    with pytest.raises(RuntimeError, match=r"one gradient at a time: leave out vectorize=True .* torch.func.jacrev"):
        torch.autograd.functional.jacobian(attend, q, vectorize=True)
    torch.testing.assert_close(torch.func.jacrev(attend)(q), torch.autograd.functional.jacobian(attend, q))


@pytest.mark.parametrize(("samples", "keys"), [(0, 5), (2, 0)])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine", "polynomial"])
def test_nothing_to_attend_to_has_gradients(name, samples, keys):
    phi = build_feature_map(name, head_dim=8, num_heads=2)
    q = torch.randn(samples, 2, 5, 8, requires_grad=True)
    k, v = (torch.randn(samples, 2, keys, 8, requires_grad=True) for _ in range(2))
    out = linear_attention(q, k, v, phi)
    assert out.shape == q.shape
    assert not out.any()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: vit(width="24"), r"width has to be int \| None, not '24'"),
        (lambda: vit(image_size=32.0), r"image_size has to be int \| list\[int\], not 32.0"),
        (lambda: vit(key_gate="false"), "key_gate has to be bool, not 'false'"),
        (lambda: vit(feature_options=None), r"feature_options has to be dict\[str, .*Any\], not None"),
        (
            lambda: build_locality("gaussian", num_heads=2, sigma_bounds=3.0),
            r"has to be tuple\[float, float\], not 3.0",
        ),
        (lambda: vit(mlp_ratio=0), "mlp_ratio has to be positive, not 0"),
        (lambda: vit(feature_options={"num_features": "64"}), "favor\\+': num_features has to be int, not '64'"),
        (lambda: build_encoding("circulant-string", head_dim=8, num_heads=2, block_size=4.0), "block_size has to be"),
        (lambda: build_encoding("sinusoidal", head_dim=8, num_heads=2, base=-1.0), "base of the frequencies has to be"),
        (
            lambda: build_encoding("pate-so2", head_dim=8, num_heads=2, grid=(4, 4), conformal_scaling=float("nan")),
            "conformal_scaling has to be 0 or more",
        ),
        (lambda: build_feature_map("favor+", head_dim=8, num_heads=2, scale=float("nan")), "has to be positive"),
        (lambda: grid_positions((4.7, 5)), r"positive sizes, like \(14, 14\), not \(4.7, 5\)"),
        (lambda: grid_positions(5), "not 5"),
    ],
)
def test_values_of_another_kind(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_models_of_another_kind():
    with pytest.raises(TypeError, match=r"built as ViT\(ViTConfig\(...\)\), not from a dict"):
        ViT({"width": 24})
    with pytest.raises(TypeError, match="takes a ViT, not a Linear"):
        fold(nn.Linear(2, 2))


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string"])
def test_hooks_of_all_modules_see_the_projections(encoding):
    model = vit(encoding=encoding).eval()
    images = torch.randn(1, 2, 16, 24)
    names = {module: name for name, module in model.named_modules()}
    called = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(names.get(module)))
    with torch.no_grad():
        try:
            seen = model(images)
        finally:
            hook.remove()
        torch.testing.assert_close(seen, model(images))
    assert "blocks.0.attention.qkv" in called


def test_padding_may_hold_anything():
    model = vit(encoding="circulant-string")
    images, mask = torch.randn(2, 2, 16, 24), torch.ones(2, 12, dtype=torch.bool)
    mask[1, -1] = False
    expected = model(images, patch_mask=mask)
    images[1, :, -4:, -8:] = torch.nan
    out = model(images, patch_mask=mask)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_tracing_names_export():
    with pytest.raises(RuntimeError, match=r"torch\.export"):
        torch.jit.trace(vit(encoding="rope").eval(), torch.randn(1, 2, 16, 24))


def test_tracing_by_fx_names_export():
    with pytest.raises(TypeError, match=r"torch\.export"):
        torch.fx.symbolic_trace(vit().eval())


@pytest.mark.parametrize(
    ("images", "kind"),
    [
        (np.zeros((1, 2, 16, 24), np.float32), "a ndarray"),
        ([np.zeros((2, 16, 24), np.float32)], "a list of ndarray"),
        (None, "a NoneType"),
    ],
)
def test_images_that_are_no_tensors(images, kind):
    with pytest.raises(TypeError, match=f"a tensor, or a list of tensors, not {kind}"):
        vit()(images)
