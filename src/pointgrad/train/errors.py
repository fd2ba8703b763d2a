"""Errors that end a training run."""


class Interrupted(RuntimeError):
    """The run was stopped on request; everything is saved."""


class NonFiniteLoss(RuntimeError):
    """The loss or the weights became NaN or infinite; the last checkpoint is older."""
