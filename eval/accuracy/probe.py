"""How well does a linear classifier of a frozen model's features do?

The linear probe: a multinomial logistic regression by L-BFGS, as in CLIP (arXiv:2103.00020, appendix A.3), on features
that are standardised by their mean and deviation over the training images. Its loss is

    mean cross-entropy + penalty / 2 |W|^2 (without the biases),

a convex function with one minimum. The penalty is the one of `--penalties` with the highest accuracy on validation
images, or of equal ones the lowest cross-entropy there. One penalty needs no validation images. Training images are
taken without augmentation, and validation images are not fitted to.

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%, with its 95 % interval by Wilson
over the images), `images`, `split`, `majority baseline` (%), `trained at` (pixels), `features` (their number),
`training images`, `fitted at` (pixels of the training images), `penalty`, `val accuracy` (%, by which the penalty was
chosen), `train accuracy` (%) and `edge` (True where the penalty is the first or last of `--penalties`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eval.accuracy.frozen import Features, add_arguments, classes_of, features_at, load_frozen, measure
from eval.accuracy.reports import PROBE
from eval.evaluations import Evaluation
from eval.report import Row
from eval.tables import ACCURACY_LINE
from performer_string.utils.validation import check_positive
from train.checkpoint import Trained
from train.data.sizes import Size
from train.utils.progress import progress

PENALTIES = [10.0**power for power in range(-6, 2)]
STEPS = 1000  # as in CLIP; a step is an evaluation of the loss on all images


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval probe`."""
    add_arguments(parser)
    shown = " ".join(f"{penalty:g}" for penalty in PENALTIES)
    penalties = f"weights of |W|^2 / 2 to choose from, on validation images (default: {shown})"
    parser.add_argument("--penalties", nargs="+", type=float, default=PENALTIES, help=penalties)


@dataclass
class Probe:
    """A linear classifier of features.

    Attributes:
        weight: weights of standardised features, float64 [classes, D].
        bias: biases, [classes].
        mean: mean of the features that it was fitted to, [D].
        std: their standard deviation, [D].
        converged: whether its loss is the lowest one.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor
    converged: bool = True

    def standardised(self, values: Tensor) -> Tensor:
        """Return features [N, D] in units of the deviations of the fitted ones."""
        return (values.to(self.mean) - self.mean) / self.std

    def logits(self, values: Tensor) -> Tensor:
        """Return the logits of features, [N, classes]."""
        return self.standardised(values) @ self.weight.T + self.bias


def loss_and_gradient(weights: Tensor, x: Tensor, labels: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the loss of a probe and its gradient.

    Args:
        weights: weights and, in the last column, biases, [classes, D + 1].
        x: standardised features, [N, D].
        labels: class of each image, [N].
        penalty: weight of |W|^2 / 2.
    """
    weight, bias = weights[:, :-1], weights[:, -1]
    log_probabilities = (x @ weight.T + bias).log_softmax(1)
    loss = F.nll_loss(log_probabilities, labels) + penalty / 2 * weight.square().sum()
    error = log_probabilities.exp()
    error[torch.arange(len(x), device=x.device), labels] -= 1  # the gradient of the logits, times N
    error /= len(x)
    return loss, torch.cat([error.T @ x + penalty * weight, error.sum(0)[:, None]], dim=1)


def start(fitted: Features, classes: int, device: torch.device) -> Probe:
    """Return a probe whose weights are zero, with the mean and deviation of the training features."""
    values = fitted.values.to(device, torch.float64)
    std, mean = torch.std_mean(values, dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # a feature that is constant says nothing
    return Probe(values.new_zeros(classes, len(mean)), values.new_zeros(classes), mean, std)


def fit(probe: Probe, fitted: Features, penalty: float) -> Probe:
    """Return a probe of the lowest loss on training features, by L-BFGS from the weights of another one."""
    from scipy.optimize import minimize  # slow to import

    x, labels = probe.standardised(fitted.values), fitted.labels.to(probe.mean.device)
    first = torch.cat([probe.weight, probe.bias[:, None]], dim=1)

    def loss(flat: Any) -> tuple[float, Any]:
        value, gradient = loss_and_gradient(torch.from_numpy(flat).to(x).view_as(first), x, labels, penalty)
        return float(value), gradient.cpu().numpy().ravel()

    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": 1e-12, "gtol": 1e-7}
    found = minimize(loss, first.cpu().numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
    weights = torch.from_numpy(found.x).to(x).view_as(first)
    return replace(probe, weight=weights[:, :-1], bias=weights[:, -1], converged=bool(found.success))


def score(probe: Probe, features: Features) -> tuple[float, float]:
    """Return the accuracy of a probe in %, and minus its mean cross-entropy."""
    logits, labels = probe.logits(features.values).cpu(), features.labels
    return 100 * float((logits.argmax(1) == labels).double().mean()), -float(F.cross_entropy(logits, labels))


def choose(
    probe: Probe, fitted: Features, validation: Features | None, penalties: Sequence[float]
) -> tuple[Probe, float, float | None]:
    """Return the probe of the best penalty, this penalty, and its accuracy on validation images in %.

    Args:
        probe: probe to start from.
        fitted: features of the training images.
        validation: features to choose by; None for one penalty.
        penalties: penalties to choose from. The largest comes first, and each next one starts from the one before.
    """
    found = []
    for penalty in progress(sorted(penalties, reverse=True), "penalties of the probe", only_lines=True):
        probe = fit(probe, fitted, penalty)
        found.append((probe, penalty, None if validation is None else score(probe, validation)))
    best, penalty, scored = max(found, key=lambda each: each[2] or (0.0, 0.0))
    return best, penalty, None if scored is None else scored[0]


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    penalties = sorted(set(options.penalties))
    for penalty in penalties:
        check_positive("--penalties", penalty)
    several, models = len(penalties) > 1, load_frozen(options)
    for trained in models:
        if several and not trained.data.validates():
            raise ValueError(
                f"{trained.name} was trained without validation images, by which one of {len(penalties)} penalties "
                f"would be chosen: give one, such as --penalties 0.001."
            )
    chosen: dict[tuple[str, Size], tuple[Probe, dict[str, Any]]] = {}

    def probe_of(trained: Trained, fitted: Features, classes: int, at: Size) -> tuple[Probe, dict[str, Any]]:
        validation = features_at(trained, at, "val", 0, device) if several else None
        probe, penalty, accuracy = choose(start(fitted, classes, device), fitted, validation, penalties)
        if not probe.converged:
            sys.stderr.write(f"{trained.name}: the probe of the penalty {penalty:g} needs more than {STEPS} steps.\n")
        return probe, {
            "penalty": penalty,
            "val accuracy": "" if accuracy is None else round(accuracy, 4),
            "train accuracy": round(score(probe, fitted)[0], 4),
            "edge": several and penalty in (penalties[0], penalties[-1]),
        }

    def classify(trained: Trained, fitted: Features, found: Features, at: Size) -> tuple[Tensor, dict[str, Any]]:
        if (trained.name, at) not in chosen:
            chosen[trained.name, at] = probe_of(trained, fitted, classes_of([fitted, found]), at)
        probe, columns = chosen[trained.name, at]
        return probe.logits(found.values).argmax(1).cpu(), columns

    yield from measure(models, options, device, classify)


EVALUATION = Evaluation(__doc__, add_options, evaluate, PROBE, line=ACCURACY_LINE)
