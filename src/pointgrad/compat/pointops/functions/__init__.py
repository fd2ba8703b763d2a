"""Pointcept's functions, also as classes with `apply`, and names of older generations; see README.md.

Names that exist in several generations, such as `grouping`, `interpolation` and `KNNQuery`, are Pointcept's here; the
older ones are in `functions.pointops`.
"""

from .aggregation import Aggregation, aggregation
from .attention import AttentionFusionStep, AttentionRelationStep, attention_fusion_step, attention_relation_step
from .grouping import Grouping, grouping, grouping2
from .interpolation import Interpolation, interpolation, interpolation2
from .pointops import (
    FurthestSampling,
    Gathering,
    KNNQuery_Heap,
    NearestNeighbor,
    ballquery,
    furthestsampling,
    gathering,
    knnquery,
    knnquery_heap,
    nearestneighbor,
    queryandgroup,
    querygroup,
)
from .query import BallQuery, KNNQuery, RandomBallQuery, ball_query, knn_query, random_ball_query
from .sampling import FarthestPointSampling, farthest_point_sampling
from .subtraction import Subtraction, subtraction
from .utils import ball_query_and_group, batch2offset, knn_query_and_group, offset2batch, query_and_group

__all__ = [
    "Aggregation",
    "AttentionFusionStep",
    "AttentionRelationStep",
    "BallQuery",
    "FarthestPointSampling",
    "FurthestSampling",
    "Gathering",
    "Grouping",
    "Interpolation",
    "KNNQuery",
    "KNNQuery_Heap",
    "NearestNeighbor",
    "RandomBallQuery",
    "Subtraction",
    "aggregation",
    "attention_fusion_step",
    "attention_relation_step",
    "ball_query",
    "ball_query_and_group",
    "ballquery",
    "batch2offset",
    "farthest_point_sampling",
    "furthestsampling",
    "gathering",
    "grouping",
    "grouping2",
    "interpolation",
    "interpolation2",
    "knn_query",
    "knn_query_and_group",
    "knnquery",
    "knnquery_heap",
    "nearestneighbor",
    "offset2batch",
    "query_and_group",
    "queryandgroup",
    "querygroup",
    "random_ball_query",
    "subtraction",
]
