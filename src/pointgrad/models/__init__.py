"""Complete networks, in the sizes of their papers."""

from pointgrad.models.catalog import build as build
from pointgrad.models.catalog import names as names
from pointgrad.models.dgcnn import dgcnn as dgcnn
from pointgrad.models.litept import litept as litept
from pointgrad.models.minkunet import minkunet as minkunet
from pointgrad.models.network import Network as Network
from pointgrad.models.point_transformer import point_transformer as point_transformer
from pointgrad.models.pointnet import pointnet as pointnet
from pointgrad.models.pointnet2 import pointnet2 as pointnet2
from pointgrad.models.pointnext import pointnext as pointnext
from pointgrad.models.ptv3 import ptv3 as ptv3
from pointgrad.models.published import Unloaded as Unloaded
from pointgrad.models.published import load_published as load_published
from pointgrad.models.sonata import sonata as sonata
from pointgrad.models.spunet import spunet as spunet
from pointgrad.models.table import summary as summary
