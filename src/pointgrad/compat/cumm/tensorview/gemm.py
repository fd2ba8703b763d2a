"""Activations for the argument `act_type` of spconv's layers."""

from enum import Enum

__all__ = ["Activation"]


class Activation(Enum):
    """Function that is applied to the result of a convolution."""

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3
