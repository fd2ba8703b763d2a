"""The compiled module `simple_knn._C`, with which Gaussian splatting initializes the scales of its Gaussians."""

__all__: list[str] = []
