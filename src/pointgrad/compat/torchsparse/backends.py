"""Settings of the original's kernels. They are accepted and have no effect."""

__all__ = ["allow_fp16", "allow_tf32", "benchmark", "device_capability", "hash_rsv_ratio", "init"]

allow_fp16 = True
allow_tf32 = True
benchmark = False
device_capability = 0
hash_rsv_ratio = 2


def init() -> None:
    """Do nothing; the original reads properties of the GPU."""
