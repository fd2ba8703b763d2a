"""Point clouds in files: one module per format, all behind `read`, `write` and `info`."""

from pointgrad.data.files.errors import FileError as FileError
from pointgrad.data.files.formats import FORMATS as FORMATS
from pointgrad.data.files.read_write import read as read
from pointgrad.data.files.read_write import write as write
from pointgrad.data.files.summary import Attribute as Attribute
from pointgrad.data.files.summary import FileInfo as FileInfo
from pointgrad.data.files.summary import info as info
