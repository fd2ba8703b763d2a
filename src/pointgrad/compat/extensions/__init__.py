"""The package `extensions` of GRNet, PoinTr and Point-MAE, for programs that do not have their own copy of it."""

__all__: list[str] = []
