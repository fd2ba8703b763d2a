"""Modules for networks on point clouds. They compose operators; no kernels live here."""
