"""The compiled module `pointgroup_ops_cuda` of Pointcept's PointGroup, with functions of `PG_OP`."""

from .PG_OP import ballquery_batch_p, bfs_cluster

__all__ = ["ballquery_batch_p", "bfs_cluster"]
