"""`pointgrad bench module:function`: checks and times a user's function beside its plain form."""

import json
import re
import sys

import pytest
import torch

from pointgrad.cli import main

SUBJECT = """
import torch

class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * x * w * g, x * x * g

class NoGradient(Good):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * x * w * g, None

class HalfGradient(Good):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return x * w * g, x * x * g

def plain(x, w): return x.square() * w
def detached(x, w): return plain(x, w).detach()
def transposed(x, w): return plain(x, w).mT
def single(x, w): return plain(x.float(), w.float())
def wrong(x, w): return x * w
def overwrites(x, w): return plain(x.mul_(2), w)
def single_only(x, w):
    if x.dtype == torch.float64:
        raise TypeError("float64")
    return plain(x, w)
def raises(x, w): raise ValueError("first line\\nsecond line")

def rows(values, index): return values.index_select(0, index), index + 1, "rows"
def plain_rows(values, index): return values[index], 1 + index, "rows"
def other_rows(values, index): return values[index], index, "rows"
def make_inputs(dtype, device): return torch.randn(30, 4, dtype=dtype), torch.randint(0, 30, (50,))

def maximum(x): return x.max(0)
def plain_maximum(x): return tuple(x.max(0))
def maximum_inputs(dtype, device): return torch.randn(9, 5, dtype=dtype).clamp(min=0.2)

class Layer(torch.nn.Module):
    def forward(self, x): return x
"""
SHAPES = ["--shapes", "30,8", "30,8"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "timed.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("timed", None)


def bench(name, reference, *options):
    return main(["bench", f"timed:{name}", "--reference", f"timed:{reference}", "--quick", *options])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_function_is_measured_printed_and_written(dtype, folder, capsys):
    assert bench("Good", "plain", *SHAPES, "--dtype", dtype, "--out", "found.json") == 0
    record = json.loads((folder / "found.json").read_text())
    assert [row["name"] for row in record["rows"]] == [
        f"{each} Good 30 x 8, 30 x 8 {dtype}" for each in ("forward", "backward")
    ]
    size = 240 * getattr(torch, dtype).itemsize
    # forward: two inputs, one output; backward: two inputs, the upstream gradient, two gradients
    assert [row["moved_bytes"] for row in record["rows"]] == [3 * size, 5 * size]
    for row in record["rows"]:
        assert row["state"] == "timed"
        assert {name: each["state"] for name, each in row["implementations"].items()} == {
            "ours": "timed",
            "plain": "timed",
        }
    shown = capsys.readouterr().out
    assert [len(re.findall(rf"\b{form} +[\d.]+", shown)) for form in ("yours", "plain", "copy")] == [2, 2, 2]


def test_inputs_and_several_outputs(capsys):
    """With make_inputs of the module, indices, and outputs that are not floating or not tensors."""
    assert bench("rows", "plain_rows") == 0
    assert "forward rows 30 x 4, 50 float32" in capsys.readouterr().out
    assert bench("other_rows", "plain_rows") == 1
    assert "output 1 differs: integers are not equal" in capsys.readouterr().out
    assert bench("maximum", "plain_maximum", "--dtype", "bfloat16") == 0  # <function>_inputs, and tied maxima


@pytest.mark.parametrize(
    ("name", "passes", "message"),
    [
        ("wrong", "forward", "wrong, not timed: the output is wrong: relative error must be at most 1e-05, got"),
        ("overwrites", "forward", "wrong, not timed: the output is wrong: relative error"),
        ("transposed", "forward", "wrong, not timed: the output must be (30, 8), got (8, 30)"),
        ("NoGradient", "backward", "wrong, not timed: the gradient of `w` is missing (None)"),
        ("HalfGradient", "backward", "wrong, not timed: the gradient of `x` is wrong: relative error"),
        ("detached", "backward", "failed: 0 outputs have a gradient, but 1 of the reference"),
        ("raises", "forward", "failed: ValueError: first line"),
    ],
)
def test_wrong_results_are_not_timed(name, passes, message, capsys):
    assert bench(name, "plain", *SHAPES) == 1
    assert f"{passes} {name} 30 x 8, 30 x 8 float32: {message}" in capsys.readouterr().out


def test_reference_without_float64(capsys):
    assert bench("Good", "single_only", *SHAPES) == 0
    assert bench("wrong", "single_only", *SHAPES) == 1


def test_output_of_another_dtype_is_wrong(capsys):
    assert bench("single", "plain", *SHAPES, "--dtype", "float16") == 1
    assert "the output must be torch.float16, got torch.float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["timed:Good"], 2, "--reference must name the plain form of timed:Good, as module:function, got none"),
        (["timed:Good", "gather"], 2, "give one function, or families, got timed:Good gather"),
        (["gather", "--shapes", "3"], 2, "--shapes cannot be used without a function, module:function"),
        (["timed:Good", "--only", "x"], 2, "--only cannot be used with a function, module:function"),
        (["timed:Good", "--reference", "timed:plain", *SHAPES, "--inputs", "timed:make_inputs"], 2,
         "give --inputs or --shapes, not both"),
        (["timed:Good", "--reference", "timed:plain", "--shapes", "30x8"], 2,
         "--shapes must be sizes separated by commas, such as 2,1024,3, got '30x8'"),
        (["timed:nosuch", "--reference", "timed:plain"], 3, "timed:nosuch: timed has no 'nosuch'"),
        (["nosuch.py:f", "--reference", "timed:plain"], 3, "cannot import nosuch: ModuleNotFoundError"),
        (["timed:Layer", "--reference", "timed:plain"], 3,
         "timed:Layer must be a function, got a module: wrap it in a function"),
        (["math:sqrt", "--reference", "timed:plain"], 4, "math:sqrt: has no inputs: give --shapes, or --inputs"),
        (["timed:Good", "--reference", "timed:raises", *SHAPES], 4,
         "timed:Good: the reference raises ValueError: first line (timed.py:"),
        (["timed:Good", "--reference", "timed:plain", "--inputs", "timed:raises"], 4,
         "timed:Good: make_inputs(torch.float32, 'cpu') failed: ValueError: first line"),
    ],
)  # fmt: skip
def test_invalid_requests_print_one_line(arguments, status, message, capsys):
    assert main(["bench", *arguments]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"pointgrad bench: {message}")
    assert output.err.count("\n") == 1
