"""Prepares a device's warm process: imports what clients need, and compiles the kernels that they use."""

import importlib

import numpy as np
import torch

from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method, find_methods
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.entropy import LANES, decode_runs, encode_runs

_FEW = 64  # elements: too few to start threads, which do not survive a fork


def prepare() -> None:
    """Import the modules of clients, and run the kernels once on dummy vectors.

    Libraries that only some runs need, such as scikit-learn and torchvision, are left to the copies that need them.
    """
    importlib.import_module("fedmrn_app.client_app")
    find_methods()
    layout, zeros = Layout(((_FEW,),)), np.zeros(_FEW, np.float32)
    for name, signed in (("fedmrn", False), ("fedmrns", True)):
        vectors = Vectors(*(torch.zeros(_FEW) for _ in range(4)))
        masked_step(MaskKind(signed), vectors)(0, torch.zeros(_FEW), 0.1, 0.5, 1)
        build_method(name, {}, RunOptions(Noise())).encode(zeros, None, SharedContext(layout, zeros, zeros), 1, 1)
    for lanes in (1, LANES):  # the global model and the dense part
        symbols, counts = np.arange(2), [[1, 1]]
        decode_runs(encode_runs([symbols], counts, lanes), counts, lanes)
