"""The extensions of docs/wire.md: by which codes msgpack holds what it has no type for."""

from __future__ import annotations

import struct

TUPLE, SET, FROZENSET, DATACLASS, PER_RANK, BROADCAST = 1, 2, 3, 4, 5, 6
BIG_INT, COMPLEX, RANGE, BYTEARRAY, SCALAR, FUTURE = 16, 17, 18, 19, 20, 21
NDARRAY, PICKLE, BYTES, TENSOR, BATCH, TEXT, LONG_BYTEARRAY = 32, 33, 34, 35, 36, 37, 38

MAX_NESTED = 100  # extensions inside extensions; each level copies what is inside

FIRST_COUNT = struct.Struct("<II")  # which buffers of the frame belong to it
TWO_FLOATS = struct.Struct("<dd")
FUTURE_MARK = struct.Struct("<Qi")
