"""Faster interpretation of Triton kernels, and checks of their launches, for processes that only interpret."""

import dataclasses
import functools
from typing import Any


def check_launches() -> None:
    """Bind the arguments of every launch of a pointgrad kernel as on a GPU, where a launch that does not bind fails."""
    from triton.runtime import interpreter

    from pointgrad.ops import launch

    run = interpreter.InterpretedFunction.run

    @functools.cache
    def parameters(kernel: Any) -> tuple[Any, Any]:
        params = launch.Kernel(kernel.fn, **kernel.kwargs).params
        return params, launch._binder(params)

    def bind_and_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if self.fn.__module__.startswith("pointgrad."):
            params, bind = parameters(self)
            key, values = bind(0, *args, **kwargs)
            hash(key)
            for param, value in zip(params, values, strict=True):
                if not (param.is_constexpr or isinstance(value, int | float)):
                    raise TypeError(f"{self.fn.__name__}: {param.name} must be a number, got {type(value).__name__}")
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    interpreter.InterpretedFunction.run = bind_and_run


def speed_up() -> None:
    """Patch Triton's language once instead of at every call of a helper function, and cache repeated computations.

    The interpreter patches at every call and restores afterwards. A process that only interprets does not need this and
    runs twice as fast without it. It also builds a table of all dtypes whenever it needs one of them, computes the
    attributes of a shape again for every value of this shape, compares the types of operands that have the same type,
    makes a constant again for every operation, and looks for overflow without reporting it.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    scopes: dict[frozenset[int], Any] = {}

    def patch_once(fn: Any) -> Any:
        languages = frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)
        if languages not in scopes:
            scopes[languages] = patch(fn)
        return type(scopes[languages])()  # an empty scope: nothing to restore

    interpreter._patch_lang = patch_once

    np_dtype = interpreter._get_np_dtype
    np_dtype_of_number = functools.cache(np_dtype)

    def np_dtype_of_scalar(dtype: Any) -> Any:
        return np_dtype(dtype) if dtype.scalar.is_ptr() else np_dtype_of_number(dtype.scalar)

    interpreter._get_np_dtype = np_dtype_of_scalar

    init_type, init_tensor = tl.core.block_type.__init__, tl.core.tensor.__init__
    types: dict[tuple[int, ...], dict[str, Any]] = {}
    tensors: dict[tuple[int, ...], dict[str, Any]] = {}

    def init_type_once(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        if key not in types:
            init_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key], element_ty=element_ty, name=f"<{key}, {element_ty}>")

    def init_tensor_once(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in tensors:
            init_tensor(self, handle, type)
            tensors[key] = dict(vars(self))
            tensors[key]["shape_key"] = key
        vars(self).update(tensors[key], handle=handle, type=type, dtype=type.scalar)

    tl.core.block_type.__init__, tl.core.tensor.__init__ = init_type_once, init_tensor_once
    if hasattr(tl.core, "tuple"):  # shapes are lists before Triton 3.3
        equal = tl.core.tuple.__eq__

        def equal_shapes(self: Any, other: Any) -> Any:
            if self is other or type(other) is list:
                return tl.constexpr(self is other or self.values == other)
            return equal(self, other)

        tl.core.tuple.__eq__ = equal_shapes

    builder = interpreter.interpreter_builder
    if not builder.options.debug and hasattr(builder.options, "sanitize_overflow"):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if hasattr(tl, "semantic") and hasattr(tl.semantic, "TritonSemantic"):  # functions before Triton 3.4
        semantic = tl.semantic.TritonSemantic
        semantic.binary_op_type_checking_impl = _check_types_once(tl, semantic.binary_op_type_checking_impl)


def _check_types_once(tl: Any, check: Any) -> Any:
    """The conversion of operands to a common type and shape, which keeps constants and skips equal types."""
    wide = (tl.int32, tl.int64, tl.float32, tl.float64)  # dtypes in which all operations are computed
    constants: dict[Any, Any] = {}

    def check_once(self: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
        if type(lhs) is tl.tensor and lhs.dtype in wide:
            if type(rhs) is tl.tensor:
                if rhs.dtype is lhs.dtype and rhs.shape_key == lhs.shape_key:
                    return lhs, rhs
            elif (type(rhs) is int or type(rhs) is float) and rhs:  # 0.0 and -0.0 are equal
                key = (rhs, type(rhs), lhs.dtype.name, lhs.shape_key, args, *kwargs.items())
                if key in constants:
                    return lhs, constants[key]
                left, right = check(self, lhs, rhs, *args, **kwargs)
                if left is lhs:
                    right.handle.data.flags.writeable = False
                    constants[key] = right
                return left, right
        return check(self, lhs, rhs, *args, **kwargs)

    return check_once
