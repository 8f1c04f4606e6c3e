"""What RiemannFormer's encodings have beyond rotations: conformal scaling, a metric, and two layouts."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from performer_string import ViTConfig, build_encoding, grid_positions
from performer_string.models.vit import ViT
from tests.helpers.encodings import exponentials, make_encoding, naming, random_positions, scores

NAMES = ("pate-so2", "pate-so3", "pate-so4")


def product(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the product of quaternions [..., 4] with the real part first."""
    a, x, b, y = p[..., :1], p[..., 1:], q[..., :1], q[..., 1:]
    real = a * b - (x * y).sum(-1, keepdim=True)
    return torch.cat([real, a * y + b * x + torch.linalg.cross(x, y)], dim=-1)


def turn(angle: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """Return cos(angle) + sin(angle) u for unit axes u [..., 3]."""
    return torch.cat([angle.cos()[..., None], angle.sin()[..., None] * axis], dim=-1)


class TestConformalScaling:
    def test_scores_are_scaled_by_the_formula(self, qk):
        positions, (q, k) = random_positions(7, 2), qk
        for name in NAMES:
            encoding = make_encoding(name, conformal_scaling=0.5, slow_down=8.0)
            unscaled = make_encoding(name)
            unscaled.load_state_dict(encoding.state_dict(), strict=False)
            index = positions[:, 0] * 5 + positions[:, 1]  # raster index on the training grid of 4 x 5
            log_lambda = 0.5 * encoding.log_lambda.tanh()
            assert (log_lambda.abs() < 0.5).all()
            scale = torch.exp(log_lambda[:, None] * index / 8.0)  # [H, N]
            expected = scale[..., None] * scale[:, None] * scores(unscaled, q, k, positions)
            with naming(name):
                assert_close(encoding(positions).matrix(), scale[..., None, None] * unscaled(positions).matrix())
                assert_close(scores(encoding, q, k, positions), expected)
                integers = positions.long()
                assert_close(encoding(integers).matrix(), encoding(integers.double()).matrix())

    def test_scaling_by_axes_has_a_lambda_for_each(self):
        positions = random_positions(7, 2)
        for name in NAMES:
            encoding = make_encoding(name, conformal_scaling=0.5, slow_down=8.0, scaling="axes", layout="axes")
            torch.nn.init.normal_(encoding.log_lambda)
            unscaled = make_encoding(name, layout="axes")
            unscaled.load_state_dict(encoding.state_dict(), strict=False)
            lambdas = (0.5 * encoding.log_lambda.tanh()).exp()  # [H, C]
            scale = (lambdas[:, None] ** (positions / 8.0)).prod(-1)  # [H, N]
            with naming(name):
                assert_close(encoding(positions).matrix(), scale[..., None, None] * unscaled(positions).matrix())

    def test_one_lambda_serves_all_heads_of_all_layers(self):
        for name in NAMES:
            sizes = {"head_dim": 12, "num_heads": 2, "grid": (4, 5), "layers": 3}
            encoding = build_encoding(name, conformal_scaling=0.5, share_lambda=True, **sizes)
            assert encoding.log_lambda.numel() == 1, name
            layers = encoding.by_layer(grid_positions((4, 5)))
            assert len(layers) == 3
            assert all(torch.equal(layer.scale, layers[0].scale) for layer in layers), name

    def test_control_scores_depend_on_absolute_positions(self, qk):
        for name in NAMES:
            encoding, positions = make_encoding(name, conformal_scaling=0.5), random_positions(7, 2)
            change = scores(encoding, *qk, positions + 0.37) - scores(encoding, *qk, positions)
            assert change.abs().max() > 1e-3, name

    def test_lambda_gets_a_gradient(self, qk):
        for name in NAMES:
            encoding = make_encoding(name, conformal_scaling=0.5)
            scores(encoding, *qk, random_positions(7, 2)).square().sum().backward()
            assert encoding.log_lambda.grad.abs().min() > 0, name

    def test_scale_starts_as_a_decay_from_one(self):
        for name in NAMES:
            scale = make_encoding(name, conformal_scaling=0.5)(grid_positions((4, 5))).scale
            assert (scale[:, 0] == 1).all(), name
            assert (scale.diff(dim=-1) < 0).all(), name


class TestMetric:
    """pate-so2 under a metric M = L L^T of each plane: T = L^-T Rot L^T."""

    def make(self, coord_dim: int = 2):
        encoding = build_encoding("pate-so2", head_dim=6, num_heads=2, coord_dim=coord_dim, metric=True, layout="axes")
        torch.nn.init.normal_(encoding.double().root)
        return encoding

    def test_scores_are_those_of_the_transport_under_the_metric(self):
        for coord_dim in (1, 2, 3):
            encoding, positions = self.make(coord_dim), random_positions(5, coord_dim)
            root = encoding.basis()[:, None]  # L, [H, 1, d, d]
            metric, transport = root @ root.mT, exponentials(encoding, positions)
            q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
            rotation = encoding(positions)
            expected = torch.einsum("bhia,hixa,hxy,hjyc,bhjc->bhij", q, transport, metric[:, 0], transport, k)
            with naming(coord_dim):
                assert_close(transport.mT @ metric @ transport, metric.expand(-1, 5, -1, -1))  # an isometry
                assert torch.linalg.eigvalsh(metric).min() > 0
                assert_close(rotation.rotate(q) @ rotation.rotate(k).mT, expected)
                full = rotation.matrix()
                assert_close(torch.einsum("bhia,hixa,hjxc,bhjc->bhij", q, full, full, k), expected)
                whole = torch.einsum("hixc,bhic->bhix", transport, q)
                assert_close(rotation.outer(rotation.rotate(q)), whole)

    def test_autocast_changes_nothing(self):
        encoding = self.make().float()

        def outputs():
            return encoding.generators(), encoding(torch.ones(5, 2)).matrix()

        exact = outputs()
        with torch.autocast("cpu", torch.bfloat16):
            assert_close(outputs(), exact, rtol=0, atol=0)

    def test_scores_depend_on_offsets_only_and_the_basis_folds(self):
        encoding, positions = self.make(), random_positions(5, 2)
        q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        moved = positions + torch.tensor([3.37, -1.2], dtype=torch.float64)
        assert_close(scores(encoding, q, k, positions), scores(encoding, q, k, moved))
        rotation = encoding(positions)
        basis, rest = rotation.factor()
        assert_close(rest.rotate(q @ basis), rotation.rotate(q))
        change_of_norms = rotation.rotate(q).norm(dim=-1) - q.norm(dim=-1)
        assert change_of_norms.abs().max() > 0.1  # no rotation of the Euclidean metric

    def test_starts_as_the_rotation_and_every_entry_gets_a_gradient(self):
        start = make_encoding("pate-so2", metric=True)(grid_positions((4, 5))).matrix()
        assert_close(start, make_encoding("pate-so2")(grid_positions((4, 5))).matrix())
        encoding, q = self.make(), torch.randn(1, 2, 7, 6, dtype=torch.float64)
        scores(encoding, q, q.flip(-1), random_positions(7, 2)).square().sum().backward()
        assert (encoding.root.grad != 0).all()


class TestLayout:
    def test_axes_have_planes_of_their_axis(self):
        omega = build_encoding("pate-so2", head_dim=12, num_heads=1, layout="axes").frequencies()[0]
        assert (omega > 0).sum(1).tolist() == [3, 3]
        assert ((omega > 0).sum(0) == 1).all()

    def test_raster_rotates_with_the_raster_index(self):
        encoding = make_encoding("pate-so2", layout="raster", base=10.0)
        positions = grid_positions((4, 5), dtype=torch.float64)  # the training grid: raster indices 0 to 19
        angles = torch.arange(20)[:, None] * 10.0 ** (-torch.arange(6, dtype=torch.float64) / 6)
        assert_close(encoding(positions).cos[0], angles.cos(), rtol=0, atol=1e-5)

    def test_raster_of_blocks_is_the_sequence_of_its_indices(self):
        index = torch.arange(20, dtype=torch.float64)[:, None]
        for name, options in (("pate-so3", {}), ("pate-so4", {}), ("pate-so4", {"factors": "both"})):
            raster = make_encoding(name, layout="raster", **options)
            sequence = make_encoding(name, coord_dim=1, **options)
            sequence.load_state_dict({k: v for k, v in raster.state_dict().items() if k != "strides"}, strict=False)
            with naming((name, options)):
                assert_close(raster(grid_positions((4, 5), dtype=torch.float64)).matrix(), sequence(index).matrix())

    def test_both_factors_are_the_product_of_two_quaternions(self):
        encoding = make_encoding("pate-so4", coord_dim=1, factors="both")
        i, x = 3.7, torch.randn(3, 4, dtype=torch.float64)  # three blocks of a head
        alpha, beta = encoding.rates[0].detach()
        u, v = torch.nn.functional.normalize(encoding.axes[:, 0].detach(), dim=-1)
        expected = product(product(turn(alpha * i, u), x), turn(beta * i, v))
        full = encoding(torch.tensor([[i]], dtype=torch.float64)).matrix()[0, 0]
        assert_close(full @ x.flatten(), expected.flatten())

    def test_default_is_raster_where_the_grid_is_known(self):
        sizes = {"head_dim": 12, "num_heads": 1}
        assert build_encoding("pate-so2", grid=(4, 5), **sizes).raster
        assert build_encoding("pate-so2", coord_dim=1, **sizes).raster
        assert not build_encoding("pate-so2", **sizes).raster

    def test_checkpoints_without_a_layout_are_rasters(self):
        config = ViTConfig.of_checkpoint(
            {"image_size": 8, "patch_size": 4, "width": 24, "depth": 1, "num_heads": 2, "encoding": "pate-so2"}
        )
        assert ViT(config).encoding.raster
