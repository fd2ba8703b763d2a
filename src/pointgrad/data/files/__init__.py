"""Point clouds in files: one module per format, all behind `read` and `write`."""

from pointgrad.data.files.door import read as read
from pointgrad.data.files.door import write as write
from pointgrad.data.files.errors import FileError as FileError
