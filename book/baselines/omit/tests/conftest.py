"""Registers the models before other tests are collected, see tests/models/registered.py."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import baselines.omit  # noqa: F401
import torch

torch.set_num_threads(1)
