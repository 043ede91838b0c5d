"""In the place of ``areal.infra.rpc.serialization``: values as the worker protocol has them over
HTTP, which is JSON with marks for what JSON lacks: tensors, arrays, bytes, dataclasses, enums,
dtypes and images."""

from __future__ import annotations

import base64
import importlib
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from .._trees import mapped


def serialize_value(value: Any) -> Any:
    """A value as JSON can carry it. Tuples become lists, processes None."""
    return mapped(value, _leaf, lists=True)


def deserialize_value(value: Any) -> Any:
    """The value that `serialize_value` was given."""
    if isinstance(value, list):
        return [deserialize_value(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    read, keys = _READERS.get(kind, (None, set())) if isinstance(kind, str) else (None, set())
    if read is not None and keys <= value.keys():
        return read(value)
    return {key: deserialize_value(entry) for key, entry in value.items()}


# --- there --------------------------------------------------------------------------


def _leaf(value: Any) -> Any:
    path = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum):
        return {"type": "enum", "class_path": path, "name": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"type": "bytes", "data": _text(value)}
    if isinstance(value, subprocess.Popen):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        data = {entry.name: serialize_value(getattr(value, entry.name)) for entry in fields(value)}
        return {"type": "dataclass", "class_path": path, "data": data}
    # What belongs to torch, numpy or PIL, none of which need be there.
    torch, np, image = (sys.modules.get(name) for name in ("torch", "numpy", "PIL.Image"))
    if torch is not None and isinstance(value, torch.Tensor):
        return _array("tensor", value, str(value.dtype), _rows(torch, value))
    if torch is not None and isinstance(value, torch.dtype):
        return {"type": "torch_dtype", "name": str(value)}
    if np is not None and isinstance(value, np.ndarray):
        if value.dtype.kind in "OV":
            raise ValueError(f"Object or void dtype cannot be sent over HTTP: {value.dtype}")
        return _array("ndarray", value, value.dtype.str, _text(np.ascontiguousarray(value)))
    if np is not None and isinstance(value, np.generic):
        return value.item()
    if image is not None and isinstance(value, image.Image):
        value.save(buffer := io.BytesIO(), format="PNG")
        return {"type": "pil_image", "data": _text(buffer.getvalue())}
    raise TypeError(
        f"a {path} cannot be sent over HTTP: send "
        "text, numbers, lists, dicts, bytes, dataclasses, enums, arrays or tensors"
    )


def _array(kind: str, value: Any, dtype: str, data: str | None) -> dict[str, Any]:
    return {"type": kind, "data": data, "shape": list(value.shape), "dtype": dtype}


def _rows(torch: Any, tensor: Any) -> str | None:
    if tensor.is_meta:
        return None
    rows = tensor.detach().cpu().contiguous()  # numpy has no type for bfloat16
    return _text((rows.float() if rows.dtype is torch.bfloat16 else rows).numpy())


def _text(data: Any) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.tobytes()).decode("ascii")


# --- and back -----------------------------------------------------------------------


def _read_tensor(value: dict[str, Any]) -> Any:
    import torch

    shape, dtype = value["shape"], _dtype(value["dtype"])
    if value["data"] is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    if not value["data"]:
        return torch.empty(shape, dtype=dtype)
    stored = torch.float32 if dtype is torch.bfloat16 else dtype
    data = bytearray(_bytes(value))  # of its own, so that it can be written to
    return torch.frombuffer(data, dtype=stored).reshape(shape).to(dtype)


def _read_array(value: dict[str, Any]) -> Any:
    import numpy as np

    return np.frombuffer(_bytes(value), dtype=value["dtype"]).copy().reshape(value["shape"])


def _read_dataclass(value: dict[str, Any]) -> Any:
    data = {key: deserialize_value(entry) for key, entry in value["data"].items()}
    return _find(value)(**data)


def _dtype(name: str) -> Any:
    return getattr(importlib.import_module("torch"), name.removeprefix("torch."))


def _bytes(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value["data"])


def _find(value: dict[str, Any]) -> Any:
    module, _, name = value["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def _read_image(value: dict[str, Any]) -> Any:
    return importlib.import_module("PIL.Image").open(io.BytesIO(_bytes(value)))


#: How a mark is read, and the keys that it has: a dict of the user's may have a key "type" too.
_READERS: dict[str, tuple[Callable[[dict[str, Any]], Any], set[str]]] = {
    "tensor": (_read_tensor, {"data", "shape", "dtype"}),
    "ndarray": (_read_array, {"data", "shape", "dtype"}),
    "dataclass": (_read_dataclass, {"class_path", "data"}),
    "enum": (lambda value: _find(value)[value["name"]], {"class_path", "name"}),
    "torch_dtype": (lambda value: _dtype(value["name"]), {"name"}),
    "pil_image": (_read_image, {"data"}),
    "bytes": (_bytes, {"data"}),
}
