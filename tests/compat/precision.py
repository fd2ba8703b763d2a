"""Comparison in 16 bits."""


def assert_no_worse(got, plain, exact):
    """The largest error of `got` is at most twice that of a plain computation in the same dtype."""
    assert got.dtype == plain.dtype
    error, allowed = ((value.double() - exact).abs().max().item() for value in (got, plain))
    assert error <= 2 * allowed, f"the error is {error}, that of the plain computation {allowed}"
