"""Point clouds from files and data sets, transforms, and packed batches."""

from pointgrad.data.cloud import Batch as Batch
from pointgrad.data.cloud import Cloud as Cloud
from pointgrad.data.cloud import collate as collate
