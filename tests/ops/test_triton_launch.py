"""Launches of the Triton kernels that skip Triton's own search, and the kernels as an operator of torch.compile."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from performer_string import build_feature_map
from performer_string.ops.triton.features import fused_forward, triton_linear_attention
from performer_string.ops.triton.launch import QuickLaunch
from tests.helpers.triton_kernels import DEVICE, assert_compiled_and_checkpointed_equal


class Program:
    """A compiled program that records how it is launched."""

    packed_metadata = ()

    def __init__(self, launches: list):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """An autotuned kernel of Triton, which finds a program at each launch."""

    def __init__(self, arg_names=("x", "y", "n", "stride_yb", "stride_yh", "stride_xb", "WIDTH", "BLOCK")):
        self.arg_names, self.searches, self.launches = arg_names, [], []
        self.best_config = type("Config", (), {"kwargs": {"BLOCK": 64}})

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.searches.append((arguments, constants))
            return Program(self.launches)

        return launch


def test_second_launch_takes_the_program_of_the_first():
    """With the strides that its arguments' names ask for."""
    kernel = Kernel()
    quick = QuickLaunch(kernel)
    quick[lambda meta: (512 // meta["BLOCK"],)](torch.zeros(2, 3), torch.zeros(4, 5, 6), n=7, WIDTH=3)
    x, y = torch.ones(2, 7), torch.ones(4, 7, 7)
    quick[lambda meta: (512 // meta["BLOCK"],)](x, y, n=9, WIDTH=3)
    ((arguments, constants),) = kernel.searches
    assert arguments[2:] == (7, 30, 6, 3)
    assert constants == {"WIDTH": 3}
    ((grid, arguments),) = kernel.launches
    assert grid == (8, 1, 1)
    assert arguments[0] is x
    assert arguments[1] is y
    assert arguments[2:] == (9, 49, 7, 7, 3, 64)


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(8, 3, dtype=torch.float64), 7, 3),
        (torch.zeros(8 * 3 + 1)[1:].view(8, 3), 7, 3),  # an address that is no multiple of 16
        (torch.zeros(8, 16), 7, 3),
        (torch.zeros(8, 3), 1, 3),
        (torch.zeros(8, 3), 32, 3),
        (torch.zeros(8, 3), 2**31, 3),
        (torch.zeros(8, 3), 7, 4),
    ],
)
def test_what_a_program_depends_on_is_searched_anew(other):
    kernel = Kernel()
    quick = QuickLaunch(kernel)
    for x, n, width in ((torch.zeros(8, 3), 7, 3), other):
        quick[(4,)](x, torch.zeros(4, 5, 6), n=n, WIDTH=width)
    assert len(kernel.searches) == 2
    assert not kernel.launches


@pytest.mark.parametrize(
    "names",
    [("x", "n", "stride_xh", "stride_xb"), ("x", "stride_xb", "n", "stride_xh"), ("x", "n", "stride_xb", "stride_xn")],
)
def test_strides_that_are_not_in_the_order_of_axes_are_an_error(names):
    with pytest.raises(AssertionError, match="out of order"):
        QuickLaunch(Kernel(names))


def arguments(name: str):
    """Return a form and leaves: q, k, v, c, s, and a bias of the keys for exponentials."""
    form = build_feature_map(name, head_dim=16, num_heads=2, num_features=20, seed=0).to(DEVICE).form()
    leaves = [torch.randn(2, 2, 33, 16, device=DEVICE) for _ in range(3)]
    theta = torch.randn(33, 8, device=DEVICE)
    leaves += [theta.cos(), theta.sin()]
    leaves += [torch.randn(2, 2, 33, device=DEVICE)] if form.kind == "exponential" else []
    mask = torch.rand(2, 33, device=DEVICE) < 0.7
    mask[:, 0] = True
    return form, [x.requires_grad_() for x in leaves], mask


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favor+", "arc-cosine"])
def test_compiled_as_one_graph_and_checkpointed_equal_eager(name):
    form, leaves, mask = arguments(name)

    def attend(q, k, v, c, s, *bias):
        return triton_linear_attention(q, k, v, form, (c, s), mask, *bias)

    assert_compiled_and_checkpointed_equal(attend, leaves)


@pytest.mark.slow
def test_operator_keeps_to_what_torch_asks_of_one():
    form, (q, k, v, c, s, bias), mask = arguments("favor+")
    inputs = (q, k, v, *(x.expand(2, 2, 33, 8) for x in (c, s)), bias, mask, form.weight, 0, form.square)
    torch.library.opcheck(fused_forward, tuple(x.detach() if hasattr(x, "detach") else x for x in inputs))
