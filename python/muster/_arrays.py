"""numpy arrays and scalars, and torch tensors on the CPU, as a description and a buffer.

Pure functions over what is passed in. Encoding never imports numpy or torch: a
value of theirs cannot exist before its library does. What has no exact
description here (objects, subclasses, user-made dtypes) is left to pickle.
"""

from __future__ import annotations

import math
import sys
from typing import Any

_PLAIN_KINDS = "biufcmM"  # dtype.str says all about these


def importing(name: str) -> Any:
    """The module of that name, imported if it is not yet."""
    module = sys.modules.get(name)
    if module is None:
        import importlib

        module = importlib.import_module(name)
    return module


# --- numpy -------------------------------------------------------------------------------


def array_parts(np: Any, array: Any) -> tuple[list[Any], Any] | None:
    """``[dtype, shape, order]`` and the bytes of an exact ndarray, uncopied where it is
    contiguous; None where only pickle keeps it exact."""
    dtype = array.dtype
    described = describe(np, dtype)
    if described is None:
        return None
    flags = array.flags
    order = "C"
    if not flags.c_contiguous:
        if flags.f_contiguous:
            order = "F"
        else:
            array = array.copy(order="C")
    if array.size == 0 or dtype.itemsize == 0:
        data: Any = b""
    else:
        flat = array.T if order == "F" else array
        data = flat.reshape(-1).view(np.uint8).data
    return [described, list(array.shape), order], data


def describe(np: Any, dtype: Any) -> Any:
    """A dtype as a str or a descr; None where neither is exact."""
    kind = dtype.kind
    if kind in _PLAIN_KINDS and dtype.isbuiltin != 2:  # 2: made by a user
        return dtype.str
    if dtype.hasobject or dtype.isbuiltin == 2 or dtype.isalignedstruct or dtype.metadata:
        return None
    try:
        described = np.lib.format.dtype_to_descr(dtype)
        exact = dtype_from(np, described) == dtype
    except Exception:
        return None
    return described if exact else None


def dtype_from(np: Any, described: Any) -> Any:
    """The dtype that describe described."""
    if isinstance(described, str):
        return np.dtype(described)
    return np.lib.format.descr_to_dtype(_descr(described))


def _descr(described: Any) -> Any:
    """A descr as numpy wants it: fields are tuples, on the wire they are lists."""
    if isinstance(described, str):
        return described
    fields = []
    for field in described:
        name = tuple(field[0]) if isinstance(field[0], (list, tuple)) else field[0]
        fields.append((name, _descr(field[1]), *(tuple(shape) for shape in field[2:])))
    return fields


def array_from(meta: Any, data: memoryview) -> Any:
    """The array of array_parts, over data itself. Raises what numpy raises on nonsense."""
    np = importing("numpy")
    described, shape, order = meta
    dtype = dtype_from(np, described)
    if dtype.hasobject:
        raise ValueError("an array of objects has no bytes")
    if order not in ("C", "F"):
        raise ValueError(f"unknown order {order!r}")
    shape = tuple(shape)
    size = math.prod(shape) * dtype.itemsize
    if size != data.nbytes or any(n < 0 for n in shape):
        raise ValueError(f"{shape} of {dtype} is {size} bytes, the buffer has {data.nbytes}")
    # np.empty would make something else of items without size.
    return np.ndarray(shape, dtype, data if size else bytearray(1), order=order)


def scalar_parts(np: Any, scalar: Any) -> list[Any] | None:
    """``[dtype, bytes]`` of an exact numpy scalar; None where only pickle keeps it exact."""
    dtype = scalar.dtype
    if (
        type(scalar) is dtype.type and dtype.kind in _PLAIN_KINDS and dtype.isbuiltin != 2
    ):  # 2: made by a user
        return [dtype.str, scalar.tobytes()]
    return None


def scalar_from(meta: Any) -> Any:
    """The scalar of scalar_parts."""
    np = importing("numpy")
    described, data = meta
    (scalar,) = np.frombuffer(data, np.dtype(described))
    return scalar


# --- torch --------------------------------------------------------------------------------


def tensor_parts(torch: Any, tensor: Any) -> tuple[list[Any], Any] | None:
    """``[dtype name, shape]`` and the bytes of a plain tensor on the CPU; None for others."""
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or vars(tensor)
    ):
        return None
    meta = [str(tensor.dtype).rpartition(".")[2], list(tensor.shape)]
    if tensor.numel() == 0:
        return meta, b""
    return meta, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def tensor_from(meta: Any, data: memoryview) -> Any:
    """The tensor of tensor_parts, over data itself."""
    torch = importing("torch")
    name, shape = meta
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if size != data.nbytes or any(n < 0 for n in shape):
        raise ValueError(f"{shape} of {name} is {size} bytes, the buffer has {data.nbytes}")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
