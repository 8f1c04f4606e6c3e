"""What tools of others do to a model: the model stays right, or the error says what to do."""

from __future__ import annotations

import json
from collections import UserDict, UserList
from dataclasses import asdict

import pytest
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from performer_string import ENCODINGS, ViT, ViTConfig

SIZES = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 2, "num_classes": 3}
GENERATORS = ["dense", "block-diagonal", "banded", "top-k", "top-k-of-matrix"]


def build(**options) -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SIZES, "feature_map": "polynomial", **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize(
    "options",
    [
        *({"encoding": name} for name in ENCODINGS),
        *({"encoding": "cayley-string", "encoding_options": {"generator": name}} for name in GENERATORS),
    ],
    ids=str,
)
@pytest.mark.parametrize("average", [{"multi_avg_fn": get_ema_multi_avg_fn(0.9)}, {"avg_fn": get_ema_avg_fn(0.9)}])
def test_the_average_of_equal_models_is_the_model(options, average):
    """torch rounds an average of integers down: indices in a buffer became others, without a word."""
    model, images = build(**options), torch.randn(2, 3, 32, 32)
    averaged = AveragedModel(model, use_buffers=True, **average)
    with torch.no_grad():
        for _ in range(4):
            averaged.update_parameters(model)
        torch.testing.assert_close(averaged(images), model(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"values": "lepe"}, {"pool": "map"}, {"head": "dense"}, {"locality": "gaussian"}], ids=str
)
@pytest.mark.parametrize("encoding", ["circulant-string", "absolute", "cayley-string"])
def test_hooks_of_all_modules_see_tensors(options, encoding):
    """torchinfo refused a module that returns a rotation, and quantised layers an input [D]."""
    model, seen = build(encoding=encoding, **options), []

    def hook(module, inputs, output):
        seen.append(module)
        assert isinstance(output, torch.Tensor), type(module)
        assert not isinstance(module, torch.nn.Linear) or inputs[0].ndim > 1, type(module)

    for module in model.modules():
        module.register_forward_hook(hook)
    model(torch.randn(1, 3, 32, 32))
    assert model.blocks[1].attention.qkv in seen


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_weights_that_a_tool_puts_into_a_model_of_the_meta_device_one_by_one(encoding):
    """As accelerate does: buffers that are not saved stayed on the meta device, and the outputs were memory's."""
    model, images = build(encoding=encoding, feature_map="favor+"), torch.randn(2, 3, 32, 32)
    with torch.device("meta"):
        empty = ViT(model.config).eval()
    for name, value in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        table = empty.get_submodule(owner)
        if leaf in dict(table.named_parameters(recurse=False)):
            value = torch.nn.Parameter(value)
        delattr(table, leaf)
        table.register_parameter(leaf, value) if isinstance(value, torch.nn.Parameter) else table.register_buffer(
            leaf, value
        )
    with torch.no_grad():
        assert torch.equal(empty(images), model(images))


def test_a_configuration_takes_the_containers_of_other_packages():
    """Those of OmegaConf are no lists and dicts: they were refused, or could not be saved."""
    given = {
        "image_size": UserList([32, 32]),
        "patch_size": (8, 8),
        "attention": UserList(["linear", "softmax"]),
        "locality": "gaussian",
        "locality_options": UserDict(sigma=UserList([4, 2])),
    }
    config = ViTConfig(**{**SIZES, **given})
    again = ViTConfig(**json.loads(json.dumps(asdict(config))))
    assert again == config
    assert config.locality_options == {"sigma": [4, 2]}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_one_graph_serves_every_size_with_scaled_logits(attention):
    model, graphs = build(attention=attention, feature_map="favor+", log_n_scaling=True), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, dynamic=True)
    with torch.no_grad():
        for size in (32, 48, 64, 80):
            images = torch.randn(2, 3, size, size)
            torch.testing.assert_close(compiled(images), model(images), rtol=0, atol=1e-5)
    assert len(graphs) == 1


@pytest.fixture
def one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"locality": "gaussian"}, {"values": "lepe"}, {"pool": "cls"}], ids=str)
def test_sharded_blocks_in_mixed_precision_keep_the_positions(options, one_process):
    """`fully_shard` rebuilds dataclasses among the arguments of a block, and casts their tensors to bf16."""
    model, images, positions = build(**options), torch.randn(2, 3, 32, 32), []
    expected, policy = model(images), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    mesh = init_device_mesh("cpu", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
        block.attention.register_forward_pre_hook(lambda layer, given: positions.append(given[2].positions.dtype))
    fully_shard(model, mesh=mesh, mp_policy=policy)
    logits = model(images)
    logits.float().square().sum().backward()
    assert positions == [torch.float32] * 2
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))


def test_learned_features_of_a_sharded_model_of_the_meta_device(one_process):
    options = {"learned": True, "num_features": 8}
    model, images = build(feature_map="favor+", feature_options=options), torch.randn(2, 3, 32, 32)
    with torch.device("meta"):
        sharded = fully_shard(ViT(model.config), mesh=init_device_mesh("cpu", (1,)))
    sharded.to_empty(device="cpu")
    set_model_state_dict(sharded, model.state_dict(), options=StateDictOptions(full_state_dict=True))
    with torch.no_grad():
        torch.testing.assert_close(sharded.eval()(images), model(images))


@pytest.mark.parametrize("tracing_mode", ["real", "symbolic"])
@pytest.mark.parametrize(
    "options", [{}, {"attention": "softmax"}, {"encoding": "absolute"}, {"values": "lepe"}], ids=str
)
def test_tracers_of_operations_follow_a_model_in_evaluation(options, tracing_mode):
    """Values were read under fake tensors and `make_fx`, to test parameters for being finite."""
    model, images = build(**options), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        graph = make_fx(model, tracing_mode=tracing_mode, _allow_non_fake_inputs=True)(images)
        torch.testing.assert_close(graph(images), model(images))
