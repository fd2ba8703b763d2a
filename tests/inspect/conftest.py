"""Fixtures for tests of inspection."""

import pytest
import torch

from tests.inspect.networks import Net


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def x():
    return torch.randn(2, 5, 3)


@pytest.fixture
def plain_torch(monkeypatch):
    """Disable oneDNN, whose bfloat16 products do not run on every processor, and use one thread for small inputs."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
