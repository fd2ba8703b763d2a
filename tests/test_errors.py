"""Messages of errors on one line."""

import doctest

import pytest

from pointgrad import errors
from pointgrad.errors import one_line


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [
        (ValueError("  a\n\tb  "), {}, "a b"),
        (ValueError("a\nb"), {"first": True}, "a"),
        (ValueError("a\nb"), {"with_type": True}, "ValueError: a b"),
        (ValueError(), {"with_type": True}, "ValueError"),
        ("", {}, ""),
        ("x" * 10, {"limit": 10}, "x" * 10),
        ("x" * 11, {"limit": 10}, "x" * 7 + "..."),
        ("name\udcff", {}, "name\\xff"),
        ("half of a pair \ud800", {}, "half of a pair \\ud800"),
    ],
)
def test_one_line(error, options, expected):
    assert one_line(error, **options) == expected


def test_documented_examples_run():
    assert doctest.testmod(errors).failed == 0
