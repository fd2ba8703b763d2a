"""Point clouds from files and data sets, transforms, and packed batches."""

from pointgrad.data.cloud import Batch as Batch
from pointgrad.data.cloud import Cloud as Cloud
from pointgrad.data.cloud import collate as collate
<<<<<<< HEAD
<<<<<<< HEAD
from pointgrad.data.datasets import S3DIS as S3DIS
from pointgrad.data.datasets import Arrays as Arrays
from pointgrad.data.datasets import Folder as Folder
from pointgrad.data.datasets import ModelNet as ModelNet
from pointgrad.data.datasets import ScanObjectNN as ScanObjectNN
from pointgrad.data.datasets import SemanticKITTI as SemanticKITTI
from pointgrad.data.datasets import ShapeNetPart as ShapeNetPart
from pointgrad.data.datasets import Shapes as Shapes
=======
from pointgrad.data.files import FORMATS as FORMATS
>>>>>>> io
=======
from pointgrad.data.files import FORMATS as FORMATS
>>>>>>> predict
from pointgrad.data.files import FileError as FileError
from pointgrad.data.files import FileInfo as FileInfo
from pointgrad.data.files import info as info
from pointgrad.data.files import read as read
from pointgrad.data.files import write as write
from pointgrad.data.loader import Loader as Loader
from pointgrad.data.open import open_dataset as open_dataset
from pointgrad.data.prepare import Prepare as Prepare
from pointgrad.data.transforms import Compose as Compose
from pointgrad.data.transforms import Crop as Crop
from pointgrad.data.transforms import DropFeatures as DropFeatures
from pointgrad.data.transforms import DropInvalid as DropInvalid
from pointgrad.data.transforms import Dropout as Dropout
from pointgrad.data.transforms import Flip as Flip
from pointgrad.data.transforms import Jitter as Jitter
from pointgrad.data.transforms import Normalize as Normalize
from pointgrad.data.transforms import Rotate as Rotate
from pointgrad.data.transforms import SamplePoints as SamplePoints
from pointgrad.data.transforms import Scale as Scale
from pointgrad.data.transforms import Shuffle as Shuffle
from pointgrad.data.transforms import Transform as Transform
from pointgrad.data.transforms import Translate as Translate
from pointgrad.data.transforms import VoxelSample as VoxelSample
