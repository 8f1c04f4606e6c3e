"""The feature map of one of the trials on CIFAR-10 still runs."""

from __future__ import annotations

import importlib.util

import torch

from experiments.tables import ROOT
from performer_string import linear_attention


def test_biased_features_estimate_their_kernel():
    spec = importlib.util.spec_from_file_location("biased", ROOT / "cifar10" / "lepe" / "biased.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del module.FEATURE_MAPS["relu-biased"]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    features = module.BiasedFeatures(8, 2, 8192, order=2, bias=2.0)
    weights = features.log_kernel(q, k).softmax(-1)
    torch.testing.assert_close(linear_attention(q, k, v, features), weights @ v, rtol=0.05, atol=0.05)
