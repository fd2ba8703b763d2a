"""The plain forms of `benchmarks/cuda_steps.py`, and its message without a GPU. The kernels need a GPU and nvcc."""

import pytest
import torch

import pointgrad
from benchmarks import cuda_steps


@pytest.mark.parametrize("form", [cuda_steps.slices, cuda_steps.weights])
def test_plain_forms(form):
    corners = torch.randn(9, 8, 5, dtype=torch.float64, requires_grad=True)
    points = torch.rand(9, 3, dtype=torch.float64) * 3 - 1.5
    out, expected = form(corners, points), pointgrad.trilinear(corners, points)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    received, right = (torch.autograd.grad(value, corners, upstream)[0] for value in (out, expected))
    torch.testing.assert_close(received, right)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["cuda_steps", "--out", str(tmp_path / "steps.json")])
    with pytest.raises(SystemExit) as stopped:
        cuda_steps.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "python -m benchmarks.cuda_steps: needs a CUDA GPU\n"
    assert not list(tmp_path.iterdir())
