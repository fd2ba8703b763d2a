"""Error messages of pointgrad.functional."""

import pytest
import torch

import pointgrad.functional as P

x = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: P.softmax([1.0], 0), TypeError, "input must be a torch.Tensor, got list"),
        (lambda: P.softmax(x.long(), 0), TypeError, "input must be float32, float64, float16 or bfloat16, got int64"),
        (lambda: P.softmax(x, 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.log_softmax(x, 0.5), TypeError, "dim must be an int, got float 0.5"),
        (lambda: P.log(3.0), TypeError, "input must be a torch.Tensor, got float 3.0"),
        (lambda: P.relu(x > 0), TypeError, "input must be float32, float64, float16, bfloat16, int64, int32, int16, int8 or uint8, got bool"),  # noqa: E501
        (lambda: P.mean(x.long()), TypeError, "input must be float32, float64, float16, bfloat16, complex64 or complex128, got int64"),  # noqa: E501
        (lambda: P.mean(x, dtype=torch.int64), ValueError, "dtype must be floating-point or complex, got torch.int64"),
        (lambda: P.mean(x, 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.mean(x, (0, -2)), ValueError, "dim must be free of duplicates, got (0, -2)"),
        (lambda: P.cat([]), TypeError, "tensors must be a non-empty sequence of tensors, got list"),
        (lambda: P.cat([x, 1]), TypeError, "tensors[1] must be a torch.Tensor, got int 1"),
        (lambda: P.cat([x[0, 0]]), ValueError, "tensors must have at least one dimension, got ()"),
        (lambda: P.cat([x, x[:1]], 1), ValueError, "tensors[1] must be (2, 3) except in dimension 1, got (1, 3)"),
        (lambda: P.cat([x], 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.linear(x, x[:, :2]), ValueError, "weight must be (O, I) or (I,) with I = 3, got (2, 2)"),
        (lambda: P.linear(x, x.double()), TypeError, "weight must have the dtype of input, float32, got float64"),
        (lambda: P.linear(x, x[0], x[0]), ValueError, "bias must be None for a weight of shape (I,), got a tensor"),
        (lambda: P.linear(x[0, 0], x), ValueError, "input must be (..., I), got ()"),
        (lambda: P.group_norm(x[0], 1), ValueError, "input must be (N, C, *), got (3,)"),
        (lambda: P.group_norm(x, 2), ValueError, "num_groups must be a divisor of the number of channels, C = 3, got 2"),  # noqa: E501
        (lambda: P.group_norm(x, 0), ValueError, "num_groups must be a divisor of the number of channels, C = 3, got 0"),  # noqa: E501
        (lambda: P.group_norm(x, 1.0), TypeError, "num_groups must be an int, got float 1.0"),
        (lambda: P.group_norm(x, 1, x), ValueError, "weight must be (C,) = (3,), got (2, 3)"),
        (lambda: P.group_norm(x, 1, x[0].double()), TypeError, "weight must have the dtype of input, float32, got float64"),  # noqa: E501
        (lambda: P.group_norm(x.long(), 1), TypeError, "input must be float32, float64, float16 or bfloat16, got int64"),  # noqa: E501
        (lambda: P.group_norm(x, 1, eps=-1), ValueError, "eps must be at least 0, got -1"),
        (lambda: P.layer_norm(x, (2, 3, 1)), ValueError, "input must be (*, 2, 3, 1), got (2, 3)"),
        (lambda: P.layer_norm(x, 2), ValueError, "input must be (*, 2), got (2, 3)"),
        (lambda: P.layer_norm(x, ()), ValueError, "normalized_shape must be one or more sizes, got ()"),
        (lambda: P.layer_norm(x, "3"), TypeError, "normalized_shape must be an int or several ints, got str '3'"),
        (lambda: P.layer_norm(x, 3, bias=x), ValueError, "bias must be normalized_shape = (3,), got (2, 3)"),
        (lambda: P.batch_norm(x, None, None), ValueError, "running_mean must be a tensor unless training is True, got None"),  # noqa: E501
        (lambda: P.batch_norm(x, x[0], None), ValueError, "running_var must be a tensor unless training is True, got None"),  # noqa: E501
        (lambda: P.batch_norm(x, x[0], None, training=True), ValueError, "running_mean and running_var must be both None or both tensors, got one of each"),  # noqa: E501
        (lambda: P.batch_norm(x, x, x[0]), ValueError, "running_mean must be (C,) = (3,), got (2, 3)"),
        (lambda: P.batch_norm(x[:1], None, None, training=True), ValueError, "input must have more than one value per channel in training, got (1, 3)"),  # noqa: E501
        (lambda: P.cosine_similarity(x, x[:, :2]), ValueError, "x2 must be broadcastable with x1 of shape (2, 3), got (2, 2)"),  # noqa: E501
        (lambda: P.cosine_similarity(x, x.long()), TypeError, "x2 must be float32, float64, float16 or bfloat16, got int64"),  # noqa: E501
        (lambda: P.cosine_similarity(x[0], x[0]), ValueError, "dim must be in [-1, 1), got 1"),
    ],
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
