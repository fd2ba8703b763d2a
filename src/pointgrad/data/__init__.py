"""Point clouds from files and data sets, transforms, and packed batches."""

from pointgrad.data.cloud import Batch as Batch
from pointgrad.data.cloud import Cloud as Cloud
from pointgrad.data.cloud import collate as collate
from pointgrad.data.files import FORMATS as FORMATS
from pointgrad.data.files import FileError as FileError
from pointgrad.data.files import FileInfo as FileInfo
from pointgrad.data.files import info as info
from pointgrad.data.files import read as read
from pointgrad.data.files import write as write
