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

    def test_forms_of_lambda_and_their_start(self):
        for name in NAMES:
            for form, start in (("bounded", 1.2), ("bounded", 0.7), ("decay", 0.7)):
                options = {"conformal_scaling": 0.5, "slow_down": 8.0, "lambda_form": form, "lambda_start": start}
                encoding, plain = make_encoding(name, **options), make_encoding(name)
                plain.load_state_dict(encoding.state_dict(), strict=False)
                positions = random_positions(5, 2)
                scale = start ** ((positions[:, 0] * 5 + positions[:, 1]) / 8)
                with naming((name, form, start)):
                    assert_close(
                        encoding(positions).matrix(),
                        scale[:, None, None] * plain(positions).matrix(),
                        rtol=1e-5,
                        atol=1e-5,
                    )
            encoding = make_encoding(name, conformal_scaling=1.0, slow_down=1.0, lambda_form="decay")
            w = torch.nn.init.normal_(encoding.log_lambda).detach()
            one_on = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
            assert_close(encoding(one_on).scale[:, 0], w.sigmoid())  # the source's other form, in (0, 1)

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


class TestMetricByPosition:
    """pate-so2 under M_i = U diag(lambda^(2 i / tau)) U^T of each plane."""

    OPTIONS = ({}, {"scaling": "axes", "layout": "axes"}, {"lambda_form": "decay", "share_lambda": True})

    def make(self, **options):
        encoding = make_encoding(
            "pate-so2", head_dim=6, metric="by-position", conformal_scaling=0.5, slow_down=8.0, **options
        )
        torch.nn.init.normal_(encoding.log_lambda)
        torch.nn.init.normal_(encoding.angle)
        return encoding

    def definition(self, encoding, positions):
        """Return M_i of each head and token and the transport T_i^-1 T_j, plane by plane from the formulas."""
        form, w = encoding.scaling.form, encoding.log_lambda
        lambdas = (0.5 * w.tanh()).exp() if form == "bounded" else w.sigmoid() ** 0.5  # [1 or H, 6] or [H, 6, 2]
        lambdas = lambdas.expand(2, *lambdas.shape[1:])
        tokens, planes = len(positions), 3
        index = positions[:, 0] * 5 + positions[:, 1]
        metric, maps = (torch.zeros(2, tokens, 6, 6, dtype=torch.float64) for _ in range(2))
        omega = encoding.frequencies()  # [H, 2, 3]
        for head in range(2):
            for p in range(planes):
                at = torch.tensor([p, p + planes])
                u = plane_turn(encoding.angle[head, p])
                for i in range(tokens):
                    each = lambdas[head, at]  # [2], or [2, 2] with an axis each
                    power = (each ** (positions[i] / 8)).prod(-1) if each.ndim == 2 else each ** (index[i] / 8)
                    rot = plane_turn(omega[head, :, p] @ positions[i])
                    metric[head, i, at[:, None], at] = u @ torch.diag(power**2) @ u.T
                    maps[head, i, at[:, None], at] = rot @ u @ torch.diag(power) @ u.T
        return metric, torch.einsum("hixy,hjyz->hijxz", torch.linalg.inv(maps), maps)

    def test_scores_are_those_of_the_transport_under_the_metric(self):
        for options in self.OPTIONS:
            encoding, positions = self.make(**options), random_positions(5, 2)
            parameters = [p for p in encoding.parameters() if p.requires_grad]
            metric, transport = self.definition(encoding, positions)
            q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
            expected = torch.einsum("bhix,hixy,hijyz,bhjz->bhij", q, metric, transport, k)
            rotation = encoding(positions)
            found = rotation.rotate(q) @ rotation.rotate(k).mT
            with naming(options):
                assert_close(found, expected)
                full = rotation.matrix()
                assert_close(full.mT @ full, metric)
                assert_close(rotation.unrotate(rotation.rotate(q)), q)
                assert_close(rotation.outer(rotation.rotate(q)), torch.einsum("hixy,bhiy->bhix", full, q))
                basis, rest = rotation.factor()
                assert_close(rest.rotate(q @ basis), rotation.rotate(q))
                weights = torch.randn_like(expected)
                mine, theirs = (torch.autograd.grad((x * weights).sum(), parameters) for x in (found, expected))
                assert all(gradient.abs().max() > 0 for gradient in mine)
                assert_close(mine, theirs)

    def test_equal_eigenvalues_are_conformal_scaling_as_at_the_start(self):
        options = {"conformal_scaling": 0.5, "slow_down": 8.0}
        plain = make_encoding("pate-so2", **options)
        positions = random_positions(5, 2)
        start = make_encoding("pate-so2", metric="by-position", **options)
        torch.nn.init.normal_(start.angle)
        assert_close(start(positions).matrix(), plain(positions).matrix())

    def test_layers_have_their_own(self):
        sizes = {"head_dim": 6, "num_heads": 2, "grid": (4, 5), "layers": 3}
        encoding = build_encoding("pate-so2", metric="by-position", conformal_scaling=0.5, **sizes)
        torch.nn.init.normal_(encoding.log_lambda)
        positions = grid_positions((4, 5))
        layers = torch.cat([layer.matrix() for layer in encoding.by_layer(positions)])
        assert_close(layers, encoding(positions).matrix())


def plane_turn(angle: torch.Tensor) -> torch.Tensor:
    """Return the rotation of a plane by an angle, [2, 2]."""
    return torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])


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
