"""The program that counts the errors found by the audit, on a smaller scale."""

import torch

from reliability.numbers import audit


def test_found_and_missed_errors_are_counted(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    monkeypatch.setattr(audit, "LARGE", {"sine": audit.LARGE["sine"]})
    monkeypatch.setattr(audit, "SMALL", {"norm": audit.SMALL["norm"]})
    wrong = audit.damaged(torch.sin, lambda gradient, upstream: gradient.mul_(2), None)
    monkeypatch.setattr(
        audit, "CORRECT", {"sine": (torch.sin, audit.normal((4,))), "wrong": (wrong, audit.normal((4,)))}
    )
    harmless = {"nothing": audit.multiply(1.0), "zero": audit.multiply(0.0)}
    monkeypatch.setattr(audit, "GRADIENT", harmless)
    result = audit.study(times=2, seed=1)
    assert result["planted"]["nothing"] == {"planted": 2, "found": 0, "missed": ["sine", "sine"]}
    assert result["planted"]["zero"] == {"planted": 2, "found": 2, "missed": []}
    factors = result["planted"]["bfloat16 only, factor 0.9 or 1.1"]
    assert (factors["planted"], factors["found"]) == (4, 4)
    assert (result["correct"], list(result["alarms"])) == (2, ["wrong"])
