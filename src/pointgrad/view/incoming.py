"""Checks of the values that browsers send. Any program that can connect may send any message."""

import math
from typing import Any

import viser

MAX_LENGTH = 1e9  # largest coordinate of a camera or a ray; the scene has a size of 10
MAX_PIXELS = 1 << 14  # largest width and height of a browser window


def control_value(control: Any, updates: Any) -> Any:
    """The value that a browser may give to a control; None if it may not change the control in this way.

    Numbers are limited to the range of their slider.

    Args:
        control: viser's handle of the control.
        updates: Properties to change, from a browser.
    """
    if not isinstance(updates, dict) or set(updates) != {"value"} or not control.visible or control.disabled:
        return None
    value = updates["value"]
    if isinstance(control, viser.GuiSliderHandle):
        if not _is_finite(value):
            return None
        return type(control.value)(min(max(value, control.min), control.max))
    if isinstance(control, viser.GuiMultiSliderHandle):
        if not isinstance(value, tuple | list) or len(value) != len(control.value):
            return None
        if not all(_is_finite(each) for each in value):
            return None
        return tuple(sorted(float(min(max(each, control.min), control.max)) for each in value))
    if isinstance(control, viser.GuiDropdownHandle | viser.GuiButtonGroupHandle):
        return value if isinstance(value, str) and value in control.options else None
    if isinstance(control, viser.GuiCheckboxHandle | viser.GuiButtonHandle):
        return value if isinstance(value, bool) else None
    return None


def is_valid_camera(message: Any) -> bool:
    """Whether all values of a camera are finite and in a sensible range."""
    return (
        all(_is_vector(each, 3) for each in (message.position, message.look_at, message.up_direction))
        and _is_vector(message.wxyz, 4)
        and all(_is_finite(each) for each in (message.fov, message.near, message.far))
        and 0 < message.fov < math.pi
        and all(type(each) is int and 0 < each <= MAX_PIXELS for each in (message.image_height, message.image_width))
    )


def is_valid_click(message: Any) -> bool:
    """Whether a message is a click with a ray of nonzero length."""
    return (
        message.event_type == "click"
        and _is_vector(message.ray_origin, 3)
        and _is_vector(message.ray_direction, 3)
        and any(message.ray_direction)
        and isinstance(message.screen_pos, tuple | list)
        and len(message.screen_pos) == 1
        and _is_vector(message.screen_pos[0], 2)
        and all(0 <= each <= 1 for each in message.screen_pos[0])
    )


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _is_vector(value: Any, size: int) -> bool:
    if not isinstance(value, tuple | list) or len(value) != size:
        return False
    return all(_is_finite(each) and abs(each) <= MAX_LENGTH for each in value)
