"""The test suites of the libraries that `pointgrad.compat` replaces, run on compat. See `__main__.py`."""

from collections import Counter


def grouped(failures: list[dict[str, str]]) -> Counter[tuple[str, str]]:
    """Count the failures by test, without its parameters, and reason."""
    return Counter((each["test"].partition("[")[0], each["reason"]) for each in failures)
