"""Helper types, as in `pytorch3d.common`."""

from .datatypes import get_device, make_device

__all__ = ["get_device", "make_device"]
