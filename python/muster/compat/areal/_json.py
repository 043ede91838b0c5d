"""Values as AReaL's worker protocol has them over HTTP: JSON, with marks for what JSON lacks.

With AReaL installed its own functions are used. These are for where it is not:
tensors, arrays, bytes, dataclasses, enums, dtypes and images.
"""

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

from . import _tensors
from ._areal import INSTALLED, part
from ._trees import mapped


def serialize_value(value: Any) -> Any:
    """A value as JSON can carry it. Tuples become lists, processes None."""
    return _theirs().serialize_value(value) if INSTALLED else _serialize(value)


def deserialize_value(value: Any) -> Any:
    """The value that `serialize_value` was given."""
    return _theirs().deserialize_value(value) if INSTALLED else _deserialize(value)


def warm() -> None:
    """Import what values need, if it is AReaL's."""
    if INSTALLED:
        _theirs()
        _tensors.home()


def _theirs() -> Any:
    return part("infra.rpc.serialization")


def _serialize(value: Any) -> Any:
    return mapped(value, _leaf, lists=True)


def _leaf(value: Any) -> Any:
    if isinstance(value, Enum):
        return {"type": "enum", "class_path": _path(value), "name": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"type": "bytes", "data": _text(value)}
    if isinstance(value, subprocess.Popen):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        data = {entry.name: _serialize(getattr(value, entry.name)) for entry in fields(value)}
        return {"type": "dataclass", "class_path": _path(value), "data": data}
    return _foreign(value)


def _foreign(value: Any) -> Any:
    """What belongs to torch, numpy or PIL, none of which need be there."""
    torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(torch, value)
    if torch is not None and isinstance(value, torch.dtype):
        return {"type": "torch_dtype", "name": str(value)}
    if np is not None and isinstance(value, np.ndarray):
        if value.dtype.kind in "OV":
            raise ValueError(f"Object or void dtype cannot be sent over HTTP: {value.dtype}")
        data = _text(np.ascontiguousarray(value).tobytes())
        return {
            "type": "ndarray",
            "data": data,
            "shape": list(value.shape),
            "dtype": value.dtype.str,
        }
    if np is not None and isinstance(value, np.generic):
        return value.item()
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        return {"type": "pil_image", "data": _text(buffer.getvalue())}
    raise TypeError(
        f"a {type(value).__module__}.{type(value).__qualname__} cannot be sent over HTTP: send "
        "text, numbers, lists, dicts, bytes, dataclasses, enums, arrays or tensors"
    )


def _tensor(torch: Any, value: Any) -> dict[str, Any]:
    made = {"type": "tensor", "data": None, "shape": list(value.shape), "dtype": str(value.dtype)}
    if not value.is_meta:
        plain = value.detach().cpu().contiguous()
        if plain.dtype is torch.bfloat16:  # which numpy has no type for
            plain = plain.to(torch.float32)
        made["data"] = _text(plain.numpy().tobytes())
    return made


def _deserialize(value: Any) -> Any:
    if isinstance(value, list):
        return [_deserialize(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    read, keys = _READERS.get(kind, (None, set())) if isinstance(kind, str) else (None, set())
    if read is not None and keys <= value.keys():
        return read(value)
    return {key: _deserialize(entry) for key, entry in value.items()}


def _read_tensor(value: dict[str, Any]) -> Any:
    import torch

    dtype = getattr(torch, value["dtype"].removeprefix("torch."))
    if value["data"] is None:
        return torch.empty(value["shape"], dtype=dtype, device="meta")
    stored = torch.float32 if dtype is torch.bfloat16 else dtype
    data = bytearray(_bytes(value["data"]))  # of its own, so that it can be written to
    if not data:
        return torch.empty(value["shape"], dtype=dtype)
    return torch.frombuffer(data, dtype=stored).reshape(value["shape"]).to(dtype)


def _read_array(value: dict[str, Any]) -> Any:
    import numpy as np

    data = np.frombuffer(_bytes(value["data"]), dtype=np.dtype(value["dtype"]))
    return data.copy().reshape(value["shape"])


def _read_dataclass(value: dict[str, Any]) -> Any:
    found = _find(value["class_path"])
    return found(**{key: _deserialize(entry) for key, entry in value["data"].items()})


def _read_dtype(value: dict[str, Any]) -> Any:
    import torch

    return getattr(torch, value["name"].removeprefix("torch."))


def _read_image(value: dict[str, Any]) -> Any:
    return importlib.import_module("PIL.Image").open(io.BytesIO(_bytes(value["data"])))


#: How a mark is read, and the keys that it has: a dict of the user's may have a key "type" too.
_READERS: dict[str, tuple[Callable[[dict[str, Any]], Any], set[str]]] = {
    "tensor": (_read_tensor, {"data", "shape", "dtype"}),
    "ndarray": (_read_array, {"data", "shape", "dtype"}),
    "dataclass": (_read_dataclass, {"class_path", "data"}),
    "enum": (lambda value: _find(value["class_path"])[value["name"]], {"class_path", "name"}),
    "torch_dtype": (_read_dtype, {"name"}),
    "pil_image": (_read_image, {"data"}),
    "bytes": (lambda value: _bytes(value["data"]), {"data"}),
}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _path(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
