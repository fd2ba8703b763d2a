"""Reading archives of `torch.save` from untrusted sources.

The reader interprets the few pickle operations that a checkpoint needs; nothing in the file is called. `torch.load` is
not used: it trusts declared sizes and strides, and chooses records without regard to case.
"""

import io
import math
import pickletools
import sys
import zipfile
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from pointgrad.data.files.errors import FileError

DEPTH = 32  # nesting of lists, tuples and dictionaries
DTYPES = {
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}
ORDERED, SIZE = "collections OrderedDict", "torch Size"
TENSOR, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
VALUES = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")  # pushed as they are


class _Storage(NamedTuple):
    dtype: torch.dtype
    record: str
    numel: int


class _View(NamedTuple):
    """A tensor that is not read yet."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def load(file: IO[bytes]) -> Any:
    """Read dictionaries, lists, tuples, plain values and tensors on the CPU from an archive of `torch.save`.

    No more memory is used than the file has bytes, up to a constant factor.

    Raises:
        FileError: The archive holds anything else, or declares sizes that do not match its records.
        Exception: Other errors of a damaged archive.
    """
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise FileError("expected an archive of torch, found a compressed one")
        if (held := sum(entry.file_size for entry in entries)) > size:
            raise FileError(f"expected at most {size} bytes in it, found {held}")
        records = {entry.filename.lower(): entry for entry in entries}
        if len(records) < len(entries):
            raise FileError("expected unique names of records, found two that are equal or differ only in case")
        (main,) = [entry.filename for entry in entries if entry.filename.endswith("/data.pkl")]
        root = main.removesuffix("data.pkl")
        if f"{root}byteorder".lower() in records and archive.read(f"{root}byteorder") != sys.byteorder.encode():
            raise FileError(f"expected {sys.byteorder}-endian numbers, found others")
        structure = archive.read(main)
        return _Builder(archive, root, len(structure), size).build(_interpret(structure))


def _interpret(structure: bytes) -> Any:
    """Run a pickle; tensors become a `_View`. Memory and time are linear in its length."""
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    for operation, argument, _ in pickletools.genops(structure):
        name = operation.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in ("TUPLE", "SETITEMS", "APPENDS"):
            items, stack = stack, marks.pop()
            if name == "TUPLE":
                stack.append(tuple(items))
            elif name == "SETITEMS":
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            else:
                stack[-1].extend(items)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "SETITEM":
            key, value = stack[-2:]
            del stack[-2:]
            stack[-1][key] = value
        elif name == "APPEND":
            stack[-2].append(stack.pop())
        elif name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            if argument not in DTYPES and argument not in (ORDERED, SIZE, TENSOR, PARAMETER):
                called = str(argument)[:100].replace(" ", ".")
                raise FileError(f"expected weights, found a call of {called}, which is not made")
            stack.append(DTYPES.get(argument, argument))
        elif name == "BINPERSID":
            _, dtype, record, _, numel = stack.pop()
            stack.append(_Storage(dtype, record, numel))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_made(stack.pop(), arguments))
        elif name == "BUILD":
            stack.pop()  # attributes of a state dictionary, which are not needed
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise FileError(f"expected a pickle of torch.save, found the operation {name}")
    raise FileError("expected a complete pickle, found no end")


def _made(function: Any, arguments: tuple[Any, ...]) -> Any:
    if function == ORDERED and arguments == ():
        return {}
    if function == TENSOR:
        return _View(*arguments[:4])
    if function in (SIZE, PARAMETER):
        return arguments[0]
    raise FileError("expected weights, found a call of something else, which is not made")


class _Builder:
    """Replaces views by tensors, after checking sizes.

    Args:
        archive: The archive.
        root: Prefix of the names of its records.
        visits: Limit on the number of values, each of which takes at least a byte of the pickle. Lists that contain
            one another several times would otherwise expand without limit.
        size: Limit on the bytes of all tensors.
    """

    def __init__(self, archive: zipfile.ZipFile, root: str, visits: int, size: int) -> None:
        self._archive, self._root = archive, root
        self._visits = visits
        self._size = self._left = size
        self._read: dict[str, Tensor] = {}

    def build(self, value: Any, depth: int = 0) -> Any:
        self._visits -= 1
        if self._visits < 0 or depth > DEPTH:
            raise FileError("expected plain nested values, found values that contain one another")
        if type(value) is dict:
            return {key: self.build(each, depth + 1) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self.build(each, depth + 1) for each in value])
        if type(value) is _View:
            return self._tensor(value)
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise FileError("expected integers of 64 bits, found a longer one")
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise FileError("expected plain values and tensors, found a storage or a name")

    def _tensor(self, view: _View) -> Tensor:
        flat = self._flat(view.storage)
        if not all(type(number) is int and number >= 0 for number in (view.offset, *view.size, *view.stride)):
            raise FileError("expected a tensor with whole sizes and strides, found others")
        self._left -= math.prod(view.size) * flat.itemsize
        if self._left < 0:
            raise FileError(f"expected tensors of at most {self._size} bytes, which it holds, found {view.size}")
        return flat.as_strided(view.size, view.stride, view.offset)  # raises if it exceeds the storage

    def _flat(self, storage: _Storage) -> Tensor:
        """Read a storage as a one-dimensional tensor."""
        dtype, record, numel = storage
        if not (type(record) is str and type(numel) is int and isinstance(dtype, torch.dtype)):
            raise FileError("expected a storage with a name and a number of elements, found others")
        if record not in self._read:
            content = bytearray(self._archive.read(f"{self._root}data/{record}"))
            if len(content) != numel * dtype.itemsize:
                raise FileError(f"expected {numel * dtype.itemsize} bytes for a tensor, found {len(content)}")
            self._read[record] = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        flat = self._read[record]
        if (flat.dtype, len(flat)) != (dtype, numel):
            raise FileError(f"expected {numel} elements of {dtype} in a storage, found {len(flat)} of {flat.dtype}")
        return flat
