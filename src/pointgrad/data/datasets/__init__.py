"""Datasets, which return a `Cloud` for an index and define classes and task."""

from pointgrad.data.datasets.arrays import Arrays as Arrays
from pointgrad.data.datasets.folder import Folder as Folder
from pointgrad.data.datasets.modelnet import ModelNet as ModelNet
from pointgrad.data.datasets.s3dis import S3DIS as S3DIS
from pointgrad.data.datasets.scanobjectnn import ScanObjectNN as ScanObjectNN
from pointgrad.data.datasets.semantickitti import SemanticKITTI as SemanticKITTI
from pointgrad.data.datasets.shapenetpart import ShapeNetPart as ShapeNetPart
from pointgrad.data.datasets.shapes import Shapes as Shapes
from pointgrad.data.datasets.street import STREET_CLASSES as STREET_CLASSES
from pointgrad.data.datasets.street import street as street
