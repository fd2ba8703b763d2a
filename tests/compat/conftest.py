"""Fixtures of the compat tests."""

import pytest


@pytest.fixture
def device(default_place):
    return default_place.device
