"""Helpers for tests of the audit."""

from pointgrad.inspect.audit import CHECKS, Subject, rows

QUICK = [name for name in CHECKS if name not in ("leaks", "compile", "opcheck", "timing", "threads")]
BAD = ("failed", "crashed")


def statuses(fn, inputs, names, **options):
    """Run the named checks; rows by name."""
    budget = 0.5 if "leaks" in names else 0.25
    options = {"isolated": True, "budget": budget, **options}  # none of these functions crashes
    return {row.name: row for row in rows(Subject(fn, inputs, **options), list(names))}
