"""What a module computes and does not learn: whole after every kind of move."""

import copy

import pytest
import torch

from performer_string import ENCODINGS, FeatureMap, SeparableEncoding, ViT, build_encoding, grid_positions
from performer_string.models.config import ViTConfig

GRID = (5, 7)


def encoding(name, **options):
    return build_encoding(name, head_dim=12, num_heads=2, coord_dim=2, grid=GRID, **options)


@pytest.mark.parametrize("assign", [False, True], ids=["to_empty", "assign"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_model_of_the_meta_device_is_the_same_model(name, assign):
    sizes = {"image_size": (20, 28), "patch_size": 4, "width": 24, "depth": 2, "num_heads": 2, "num_classes": 3}
    config = ViTConfig(**sizes, encoding=name, feature_map="polynomial")
    model = ViT(config).eval()
    with torch.device("meta"):
        moved = ViT(config).eval()
    if not assign:
        moved.to_empty(device="cpu")
    moved.load_state_dict(model.state_dict(), assign=assign)
    images = torch.randn(2, 3, 20, 28)
    with torch.no_grad():
        assert torch.equal(moved(images), model(images))


def test_loading_leaves_a_model_on_its_devices():
    """The buffers of a part went to the device of the model's first parameter. Meta stands for another device."""
    model = ViT(ViTConfig(image_size=16, patch_size=4, width=24, depth=2, num_heads=2, values="group-action"))
    state = model.state_dict()
    model.encoding.to("meta")
    model.blocks[1].to("meta")
    devices = {name: buffer.device for name, buffer in model.named_buffers()}
    with pytest.warns(UserWarning, match="which is a no-op"):
        model.load_state_dict(state)
    assert {name: buffer.device for name, buffer in model.named_buffers()} == devices
    assert {device.type for device in devices.values()} == {"cpu", "meta"}
    model.load_state_dict(state, assign=True)
    assert not any(buffer.is_meta for buffer in model.buffers())


@pytest.mark.parametrize("name", ["rope", "visionllama"])
def test_fixed_frequencies_are_not_rounded(name):
    positions = grid_positions(GRID) + 300
    fixed = encoding(name)
    rounded = copy.deepcopy(fixed).bfloat16().half()
    assert torch.equal(rounded(positions).matrix(), fixed(positions).matrix())


@pytest.mark.parametrize("name", ["rope", "circulant-string", "sinusoidal"])
def test_constants_are_not_rounded_where_bf16_is_the_default(name):
    torch.set_default_dtype(torch.bfloat16)
    try:
        built = encoding(name)
    finally:
        torch.set_default_dtype(torch.float32)
    for constant in built.computed_names:
        assert torch.equal(built.get_buffer(constant), encoding(name).get_buffer(constant))


@pytest.mark.parametrize("by_hand", [False, True], ids=["forgotten", "by hand"])
def test_constants_that_were_not_registered_are_an_error(by_hand, monkeypatch):
    """Without it they were missing, or rounded to bf16 without a word where the class had registered them itself."""

    class Forgetful(SeparableEncoding):
        def __init__(self, sizes):
            super().__init__(sizes)
            if by_hand:
                self.register_buffer("directions", self.computed_buffers()["directions"], persistent=False)

        def computed_buffers(self):
            return {"directions": torch.ones(1, 2, self.head_dim // 2)}

        def frequencies(self):
            return self.directions

    monkeypatch.setitem(ENCODINGS, "forgetful", Forgetful)
    with pytest.raises(TypeError, match=r"Forgetful: computed_buffers\(\) gives directions, not registered: call"):
        encoding("forgetful")


def test_strides_of_a_raster_are_not_rounded_with_its_frequencies():
    raster = build_encoding("pate-so2", head_dim=4, num_heads=1, grid=(14, 14), learn_angles=False).bfloat16()
    with torch.no_grad():
        raster.omega.fill_(0.75)  # a number that bf16 has
    angles = raster(torch.tensor([[30.0, 5.0]])).cos.acos()
    torch.testing.assert_close(angles, torch.full_like(angles, 0.75 * (30 * 14 + 5)).cos().acos(), rtol=0, atol=1e-3)


def test_constants_gain_digits_in_float64():
    omega = encoding("rope").double().omega[0, 0, :3]
    torch.testing.assert_close(omega, 100.0 ** -(torch.arange(3).double() / 3), rtol=1e-15, atol=0)
    fourier = encoding("circulant-string").double().fourier
    torch.testing.assert_close(fourier @ fourier.mT, torch.eye(12).double(), rtol=0, atol=1e-14)


class Shifted(FeatureMap):
    """A map with a constant, which no map of this project has."""

    def __init__(self, head_dim, num_heads):
        super().__init__(head_dim, num_heads, head_dim)
        self.register_computed_buffers()

    def computed_buffers(self):
        return {"shift": torch.arange(self.head_dim) / 3}

    def queries(self, q):
        return (q + self.shift).relu()


class Late(Shifted):
    """One that computes another constant, of which its parent's constructor knows nothing."""

    def __init__(self, head_dim, num_heads):
        super().__init__(head_dim, num_heads)
        self.count = 3

    def computed_buffers(self):
        late = {"more": torch.arange(self.count) / 3} if hasattr(self, "count") else {}
        return {**super().computed_buffers(), **late}


def test_constants_that_a_parent_did_not_register():
    Shifted(6, 2).check_registered()
    with pytest.raises(TypeError, match="gives more, not registered"):
        Late(6, 2).check_registered()


def test_features_of_the_meta_device():
    phi = Shifted(6, 2)
    with torch.device("meta"):
        moved = Shifted(6, 2)
    x = torch.randn(1, 2, 4, 6)
    moved.load_state_dict(phi.state_dict(), assign=True)
    assert torch.equal(moved.queries(x), phi.queries(x))
    assert torch.equal(moved.to("meta").to_empty(device="cpu").queries(x), phi.queries(x))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("move", ["float", "double"])
def test_a_move_within_inference_mode_leaves_buffers_that_train(name, move):
    part = encoding(name)
    before = dict(part.named_buffers())
    with torch.inference_mode():
        getattr(part, move)()
    for buffer_name, buffer in part.named_buffers():
        assert not buffer.is_inference()
        assert (buffer is before[buffer_name]) == (buffer.dtype == before[buffer_name].dtype)
