"""Columns of data frames: of which types Arrow can hold them as what they are.

It goes by the names of types, so that no library of theirs is imported. This module does no I/O.
"""

from __future__ import annotations

import re
from typing import Any

# pandas' own types that are Arrow's, too: with nulls, of text, with a time zone, Arrow's themselves.
# Of the others its tables have a part: a period's number, an interval's ends.
_OF_PANDAS = re.compile(r"((U?Int|Float)\d+|Boolean|String|DatetimeTZ|Arrow)Dtype")


def in_arrow(dtype: Any) -> bool:
    """Whether Arrow has what a column of a data frame holds, by the column's type."""
    kind = type(dtype)
    if kind.__module__.partition(".")[0] == "polars":
        return kind.__name__ != "Object" and getattr(dtype, "__name__", "") != "Object"
    if not hasattr(dtype, "construct_array_type"):  # none of pandas' extensions
        return True
    if kind.__name__ == "CategoricalDtype":
        return in_arrow(getattr(dtype.categories, "dtype", None))
    return _OF_PANDAS.fullmatch(kind.__name__) is not None


def apart(frame: Any) -> list[Any]:
    """The names of those columns of a data frame that Arrow has no type for."""
    if not hasattr(frame, "__arrow_c_stream__"):
        return []
    names, types = getattr(frame, "columns", ()), getattr(frame, "dtypes", ())
    return [name for name, dtype in zip(names, types, strict=False) if not in_arrow(dtype)]
