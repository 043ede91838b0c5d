"""Blocks: columns of the same rows, as a user gave them or in an object.

A block is given first and frozen when it is first sent: written to the store
once, read from there after that. Handles (`_rows`) name rows of blocks; reading
and gathering them is here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _columns, _drafts, _layout, _objects, _pages, _sources, _store
from ._columns import Array, Bytes, Column, Index
from ._errors import EncodingError, ProtocolError, ReleasedError
from ._rows import Piece

_NAMES_SHOWN = 8
_LONG = ("ragged", "text", "bytes")


class Block:
    """Columns of the same rows; once it is stored it never changes."""

    __slots__ = ("__weakref__", "_given", "_header", "_kept", "_lock", "_shown", "source")

    def __init__(self, given: dict[str, Any] | None, source: _sources.Source | None) -> None:
        self._given = given
        self.source = source
        self._header: _layout.Header | None = None
        self._lock = threading.Lock()
        self._kept: Any = None  # the content, where it costs nothing to hold, or is to be held
        self._shown: set[str] = set()  # columns of which views were given out

    @property
    def local(self) -> bool:
        """Whether the block is still as it was given."""
        return self.source is None

    @property
    def inline(self) -> bool:
        """Whether its bytes ride in frames."""
        return isinstance(self.source, _sources.Inline)

    def unwritten(self) -> Block:
        """The same rows as they are sent, without what was written to them here; of what rides
        in frames."""
        return Block(None, self.source) if self.inline else self

    def names(self) -> list[str]:
        """The columns."""
        given = self._given
        return list(self.header().columns if given is None else given)

    def rows(self) -> int:
        """How many rows there are."""
        given = self._given
        if given is None:
            return self.header().rows
        return len(next(iter(given.values())))

    # --- given ---------------------------------------------------------------------------

    def freeze(self, pickle: str) -> _sources.Source:
        """Write it to the store, once."""
        with self._lock:
            if self.source is None:
                given = self._given
                assert given is not None
                columns = {n: _drafts.draft(n, value, pickle) for n, value in given.items()}
                self.source = _placed(self.rows(), columns)
                self._given = None
            return self.source

    # --- stored --------------------------------------------------------------------------

    def content(self) -> Bytes:
        """The bytes of the object, for as long as something made over them lives."""
        root: Any = self._kept
        if root is None:
            assert self.source is not None
            try:
                root = self.source.root()
            except ReleasedError as error:
                raise ReleasedError(f"this batch cannot be read any more: {error}") from None
            if self.inline:
                self._kept = root
        return root  # type: ignore[no-any-return]

    def hold(self) -> None:
        """Keep what is stored open, for who reads it row by row."""
        if not self.local:
            self._kept = self.content()

    def let_go(self) -> Any:
        """Undo `hold`, and say what is to let go: a stretch of an object, which keeps open what is
        until it does, or None."""
        if type(self.source) is not _objects.Stored:
            return None
        self.source.keep()
        self._kept = None
        return self.source

    def header(self) -> _layout.Header:
        """What lies in the object."""
        header = self._header
        if header is None:
            content, source = self.content(), self.source
            need = source.need if source is not None and source.partial else None
            header = self._header = _layout.read_header(content, need)
        return header

    def _column(self, name: str, some: Sequence[range | Index] | None = None) -> Column:
        """A column, of which these rows are read; None: all."""
        content = self.content()  # held while it is read, so that it is opened once
        header = self.header()
        if name not in header.columns:
            raise ProtocolError(f"an object of a batch has no column {name!r}: {self.names()}")
        source = self.source
        if source is None or not source.partial:
            return _layout.load(content, header, name)
        spec = header.columns[name]
        source.need(_layout.loading(spec))
        column = _layout.load(content, header, name)
        for rows in some or ():
            check_rows(name, column, rows)
        source.need(
            _layout.reading(header, spec, column, [range(len(column))] if some is None else some)
        )
        return column

    def _stored(self, name: str, rows: range | Index) -> Column:
        column = self._column(name, [rows])
        check_rows(name, column, rows)
        return column.take(rows)

    def ensure(self, name: str, rows: range | Index) -> None:
        """Have some rows of a column here, for who reads them by `device_address`."""
        self._column(name, [rows])

    def lengths(self, name: str, rows: range | Index) -> NDArray[np.int64] | None:
        """How long stored rows are, in elements or bytes, without reading them; None where all
        are of one shape."""
        if self.header().columns[name].kind == "fixed":
            return None
        column = self._column(name, [])
        check_rows(name, column, rows)
        assert not isinstance(column, _columns.Fixed)
        if isinstance(rows, range):
            return np.diff(column.offsets[rows.start : rows.stop + 1])
        at = rows.astype(np.int64)
        return column.offsets[at + 1] - column.offsets[at]

    def nbytes(self, name: str, rows: range | Index) -> int:
        """The bytes of some rows, and of where they begin; none that is stored is read."""
        if self._given is not None:
            return self.column(name, rows, "on").nbytes
        spec, lengths = self.header().columns[name], self.lengths(name, rows)
        size = 1
        if spec.kind in ("fixed", "ragged"):
            size = math.prod(spec.shape) * int(_columns.dtype_of(spec.type).itemsize)
        return len(rows) * size if lengths is None else 8 * len(rows) + int(lengths.sum()) * size

    def show(self, names: Iterable[str]) -> None:
        """Somebody has views of these columns."""
        self._shown.update(names)

    def written(self, name: str) -> bool:
        """Whether somebody here wrote to a column, which then differs from what lies in the store;
        where the kernel does not tell, whether somebody could."""
        if name not in self._shown:
            return False
        base, spans = self.content().ctypes.data, self.header().columns[name].spans
        ends = [(base + at, base + at + length) for at, length in spans if length]
        if not ends:
            return False
        return _pages.written(*_pages.around(min(ends)[0], max(ends)[1]))

    # --- reading -------------------------------------------------------------------------

    def whole(
        self, name: str, pickle: str | None, some: Sequence[range | Index] | None = None
    ) -> Column | None:
        """All rows as a column, of which these are read (None: all); None for a given list where
        ``pickle`` is None, because to draft that may pickle."""
        given = self._given
        if given is None:
            column = self._column(name, some)
            self._shown.add(name)
            return column
        value = given[name]
        if pickle is None and (isinstance(value, list) or _of_objects(value)):
            return None
        return _drafts.draft(name, value, pickle or "off")

    def column(self, name: str, rows: range | Index, pickle: str) -> Column:
        """Some rows as a column."""
        given = self._given
        if given is None:
            return self._stored(name, rows)
        value = given[name]
        if not len(rows) and len(value) and (isinstance(value, list) or _of_objects(value)):
            return _no_rows(name, value, pickle)
        return _drafts.draft(name, _some(value, rows), pickle)

    def read(self, name: str, rows: range | Index) -> Any:
        """Some rows as the user had them."""
        given = self._given
        if given is not None:
            return _some(given[name], rows)
        content, source = self.content(), self.source
        self._shown.add(name)
        if type(rows) is range:
            if source is not None and source.partial:
                return self._stored(name, rows).value()
            value = _layout.plain_rows(content, self.header(), name, rows.start, rows.stop)
            if value is not None:
                return value
        return self._stored(name, rows).value()

    def describe(self, name: str) -> str:
        """The type of a column, for people."""
        given = self._given
        if given is not None:
            return _drafts.describe_given(given[name])
        spec = self.header().columns[name]
        return _columns.describe(spec.kind, spec.type, spec.shape, spec.lib)


def check_rows(name: str, column: Column, rows: range | Index) -> None:
    """ProtocolError where a handle names rows that its object lacks."""
    last = rows.stop if isinstance(rows, range) else int(rows.max(initial=0)) + 1
    if len(rows) and last > len(column):
        raise ProtocolError(
            f"a batch names row {last - 1} of column {name!r}, whose object has {len(column)}"
        )


def _of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "OT"


def _some(value: Any, rows: range | Index) -> Any:
    if isinstance(rows, range):
        whole = rows.start == 0 and rows.stop == len(value)
        return value if whole else value[rows.start : rows.stop]
    if isinstance(value, list):
        return [value[row] for row in rows.tolist()]
    if isinstance(value, np.ndarray):
        return np.take(value, rows, axis=0)
    return _drafts.draft("", value).take(rows).value()  # torch does not index all of its types


def _no_rows(name: str, value: Any, pickle: str) -> Column:
    """None of the rows of a list, of the type that all of them have."""
    try:
        return _drafts.draft(name, value, "off").take(range(0))
    except EncodingError:
        return _drafts.draft(name, value[:0], pickle)


def _placed(rows: int, columns: Mapping[str, Column]) -> _sources.Source:
    size, fill = _layout.layout(rows, columns)
    names = ", ".join([*columns][:_NAMES_SHOWN]) + (", …" if len(columns) > _NAMES_SHOWN else "")
    return _store.place(size, fill, f"batch of {rows} rows: {names}")


def place(rows: int, columns: Mapping[str, Column]) -> Block:
    """A stored block of these columns."""
    return Block(None, _placed(rows, columns))


# --- gathering ---------------------------------------------------------------------------


def value_of(name: str, stored: str, pieces: Sequence[Piece]) -> Any:
    """A column of pieces as the user had it: a view where it is one range, else one copy."""
    some = [piece for piece in pieces if len(piece.rows)] or pieces[:1]
    if len(some) == 1:
        return some[0].block.read(stored, some[0].rows)
    columns = _wholes(stored, some, None)
    if columns is not None:
        return _columns.joined(columns).value()
    values = [block.read(stored, rows) for block, rows in some]
    if all(isinstance(value, list) for value in values):
        return list(chain.from_iterable(values))
    if all(map(_of_objects, values)):
        return np.concatenate(values)
    kinds = dict.fromkeys(block.describe(stored) for block, _ in some)
    raise ValueError(
        f"column {name!r} is {' in some rows and '.join(kinds)} in others: "
        "make it the same before the batches are put together"
    )


def lengths_of(stored: str, pieces: Sequence[Piece]) -> NDArray[np.int64] | None:
    """How long the rows of a column are, if they are stored and of lengths that tell something:
    in elements, in bytes of UTF-8. No row is read."""
    found = []
    for block, rows in pieces:
        if block.local or block.header().columns[stored].kind not in _LONG:
            return None
        found.append(block.lengths(stored, rows))
    return np.concatenate(found)


def column_of(name: str, stored: str, pieces: Sequence[Piece], pickle: str) -> Column:
    """A column of pieces as it is written."""
    some = [piece for piece in pieces if len(piece.rows)] or pieces[:1]
    if len(some) == 1:
        column: Column = some[0].block.column(stored, some[0].rows, pickle)
        return column
    columns = _wholes(stored, some, pickle)
    if columns is not None:
        return _columns.joined(columns)
    return _drafts.draft(name, value_of(name, stored, pieces), pickle)


def _wholes(
    stored: str, pieces: Sequence[Piece], pickle: str | None
) -> list[tuple[Column, range | Index]] | None:
    """The pieces as rows of columns; None where those cannot be joined as they are."""
    columns: dict[int, Column] = {}
    read: dict[int, list[range | Index]] = {}
    for block, rows in pieces:
        read.setdefault(id(block), []).append(rows)
    for block, rows in pieces:
        if id(block) not in columns:
            column = block.whole(stored, pickle, read[id(block)])
            if column is None:
                return None
            columns[id(block)] = column
        check_rows(stored, columns[id(block)], rows)
    if len({_columns.signature(column) for column in columns.values()}) > 1:
        return None
    return [(columns[id(block)], rows) for block, rows in pieces]


def empty_of(name: str, stored: str, pieces: Sequence[Piece]) -> Column | None:
    """A column without rows, for its type; None for objects, which have none."""
    try:
        return column_of(name, stored, pieces, "off")
    except EncodingError:
        return None


def content_of(rows: int, columns: Mapping[str, Column]) -> Array:
    """An object of these columns in memory of this process alone."""
    size, fill = _layout.layout(rows, columns)
    made = np.empty(size, np.uint8)
    fill(made)
    return made
