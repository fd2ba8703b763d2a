"""Point clouds from files and data sets, transforms, and packed batches."""

from pointgrad.data.cloud import Batch as Batch
from pointgrad.data.cloud import Cloud as Cloud
from pointgrad.data.cloud import collate as collate
from pointgrad.data.datasets import Arrays as Arrays
from pointgrad.data.datasets import Shapes as Shapes
from pointgrad.data.files import FileError as FileError
from pointgrad.data.files import read as read
from pointgrad.data.files import write as write
from pointgrad.data.loader import Loader as Loader
from pointgrad.data.open import open_dataset as open_dataset
from pointgrad.data.prepare import Prepare as Prepare
from pointgrad.data.transforms import Compose as Compose
from pointgrad.data.transforms import Crop as Crop
from pointgrad.data.transforms import DropFeature as DropFeature
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
