"""Batch: rows of named columns that move by reference.

Owns the class that users see. What a batch is made of is `_parts` (which columns
of which rows), `_blocks` (where they lie) and `_metas`; what it is turned into
and made from, `_adapters`, `_arrow` and `_cuda`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

try:
    import numpy as np
except ImportError as error:
    raise ImportError(f"Batch needs numpy: pip install 'muster[numpy]' ({error})") from error

from . import _blame, _blocks, _drafts, _legs, _metas, _objects, _parts, _rows, _views, _wire
from ._blocks import Block
from ._errors import MusterError, ReleasedError
from ._looks import Stretch
from ._parts import Part
from ._rows import Cut, Handle, Piece
from ._sources import Inline

if TYPE_CHECKING:
    import os


_new = tuple.__new__
_HELD = 64  # objects that are kept open while several columns are read


class Batch:
    """Rows of named columns: numpy arrays, torch tensors, or lists of anything.

    Slicing, selecting, joining and re-ordering make new batches that share the data. What a
    batch was made from stays as it is until the batch is first sent; then it is written to
    shared memory once, and later sends and reads use that.
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_came",
        "_cut",
        "_look",
        "_looked",
        "_metas",
        "_one",
        "_parts",
        "_rows",
        "_rows_made",
    )

    _parts: list[Part] | None  # None: released
    #: What it is, if it is so simple; parts are then made when needed.
    _one: tuple[_legs.Range, _objects.Stored] | None
    _came: tuple[bytes, Sequence[Any]] | None  # its payload and buffers, while nothing is changed
    _looked: bool  # it is known to keep something open
    _look: _metas.Look | None  # what somebody got of its metas, and may have changed since

    def __init__(
        self, columns: Mapping[str, Any] | None = None, meta: Mapping[Any, Any] | None = None
    ) -> None:
        columns = {} if columns is None else columns  # some have no truth, as a TensorDict
        if not hasattr(columns, "items"):
            raise TypeError(
                f"a batch is made of a dict of columns, not of a {_blame.type_name(columns)}; "
                "Batch.of takes rows, tables and others' types"
            )
        given = {name: _drafts.take(name, value) for name, value in columns.items()}
        self._rows = _drafts.common_length(given)
        self._parts = []
        if given:
            piece = Piece(Block(given, None), range(self._rows))
            self._parts.append(Part({name: name for name in given}, [piece]))
        self._cut: Cut | None = None
        self._metas: list[_metas.Meta] = _metas.given(meta)
        self._cache: dict[str, Any] = {}
        self._rows_made: dict[str, list[Any]] = {}  # what lists in the cache were made of
        self._came = self._one = self._look = None
        self._looked = False

    @classmethod
    def _of(
        cls, rows: int, parts: list[Part], cut: Cut | None, metas: Iterable[_metas.Meta]
    ) -> Batch:
        made = cls.__new__(cls)
        made._rows, made._parts, made._cut, made._cache = rows, parts, cut, {}
        made._came = made._one = made._look = None
        made._looked, made._rows_made = False, {}
        made._metas = list(metas)
        return made

    def _like(self, parts: list[Part], rows: int | None = None, cut: Any = ...) -> Batch:
        return Batch._of(
            self._rows if rows is None else rows,
            parts,
            self._cut if cut is ... else cut,
            self._told(),
        )

    def _live(self) -> list[Part]:
        parts = self._parts
        if parts is None:
            raise ReleasedError(
                "this batch was released: what it held may be gone; keep it, or a slice of it, "
                "until its last use"
            )
        if not parts and self._one is not None:
            self._parts = parts = [_legs.part_of(*self._one)]
            parts[0].pieces[0].block.show(self._cache)
        return parts

    # --- what it is ----------------------------------------------------------------------

    def __len__(self) -> int:
        self._live()
        return self._rows

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return [name for part in self._live() for name in part.columns]

    @property
    def meta(self) -> dict[Any, Any]:
        """What the batch carries beside its rows. Changes to it go along when it is sent."""
        self._live()
        if self._look is None:
            self._look, self._came = _metas.Look(self._metas), None
        return self._look.values

    def _told(self) -> list[_metas.Meta]:
        """Its metas as they are now."""
        if self._look is not None:
            self._metas = self._look.metas()
        return self._metas

    @property
    def nbytes(self) -> int:
        """The bytes of its rows."""
        return sum(
            block.nbytes(stored, rows)
            for part in self._live()
            for block, rows in part.pieces
            for stored in part.columns.values()
        )

    def __contains__(self, name: object) -> bool:
        return any(name in part.columns for part in self._live())

    def __repr__(self) -> str:
        if self._parts is None:
            return "Batch(released)"
        shown = []
        for part in self._live():
            block = part.pieces[0].block
            for name, stored in part.columns.items():
                try:
                    shown.append(f"{name} {block.describe(stored)}")
                except MusterError:  # out of reach
                    shown.append(name)
        text = f"{self._rows} row{'s' * (self._rows != 1)}"
        if shown:
            text += ": " + ", ".join(shown)
        try:
            metas = self._told()
            keys = ", ".join(map(str, _metas.merged(metas))) if metas else ""
        except MusterError:
            keys = "?"
        return f"Batch({text}{'; meta: ' * bool(keys)}{keys})"

    # --- reading -------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | np.ndarray[Any, Any]) -> Batch: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if self._one is not None and key not in self._cache:
                value = _legs.read(*self._one, key)
                if value is not None:
                    self._cache[key] = value
                    if not self._looked:
                        self._looked = True
                        self._one[1].right.ledger.looks.note(self)
                    if self._parts:
                        self._parts[0].pieces[0].block.show((key,))
                    return value
            return self._value(key)
        if isinstance(key, slice):
            start, stop, step = key.indices(self.__len__())
            if step == 1:
                return self._slice(start, max(start, stop))
            return self.take(range(start, stop, step))
        if getattr(key, "ndim", 0):  # a tensor of one element would pass for a number
            return self.take(key)
        try:
            row = operator.index(key)
        except TypeError:
            return self.take(key)
        if not -len(self) <= row < self._rows:
            raise IndexError(f"row {row} of a batch of {self._rows} rows")
        row %= self._rows
        one, read = self._slice(row, row + 1), self._cache
        for part in one._live():
            part.pieces[0].block.hold()
        one._looked = True  # as it goes
        if not self._looked:
            _views.held(self)
        return {n: read[n][row] if n in read else one._value(n)[0] for n in self.columns}

    def keys(self) -> list[str]:
        """The names of the columns, so that ``dict(b)`` has those."""
        return self.columns

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self.columns
        held = self._held()
        values = [self._value(name) for name in names]
        del held
        if not names:
            return ({} for _ in range(self._rows))
        return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))

    def _part(self, name: str) -> Part:
        if not isinstance(name, str):
            raise TypeError(
                f"a column is named by a str, not by {name!r}; several, as b.select('x', 'y')"
            )
        for part in self._live():
            if name in part.columns:
                return part
        raise KeyError(f"no column {name!r}: this batch has {', '.join(self.columns) or 'none'}")

    def _value(self, name: str) -> Any:
        part = self._part(name)
        if name in self._cache:
            return self._cache[name]
        value = _blocks.value_of(name, part.columns[name], part.pieces)
        if len(part.pieces) > 1 or not part.pieces[0].block.local:
            return _views.keep(self, part, name, value)
        return value

    def _let_go(self, stretches: dict[int, Stretch]) -> bool:
        return _views.let_go(self, stretches)

    def _held(self) -> list[Any]:
        """The bytes of all objects: while several columns are read, each is opened once."""
        return [
            piece.block.content()
            for part in self._live()
            for piece in part.pieces[:_HELD]
            if not piece.block.local
        ]

    # --- other rows ----------------------------------------------------------------------

    def _slice(self, start: int, stop: int) -> Batch:
        parts = _parts.remade(self._live(), lambda pieces: _rows.cut(pieces, start, stop))
        cut = None if self._cut is None else self._cut.of(slice(start, stop))
        return self._like(parts, stop - start, cut)

    def take(self, rows: Any) -> Batch:
        """The rows of these indices, in their order; or those where a mask is true."""
        indices = _rows.indices(rows, self.__len__())
        parts = _parts.remade(self._live(), lambda pieces: _rows.pick(pieces, indices))
        cut = None if self._cut is None else self._cut.of(indices)
        return self._like(parts, len(indices), cut)

    def repeat(self, n: int) -> Batch:
        """Each row n times, copies of a row beside each other."""
        if _rows.whole_number("repeat", n) < 0:
            raise ValueError(f"rows cannot be repeated {n} times")
        return self.take(np.repeat(np.arange(self.__len__()), n))

    def chunk(self, n: int) -> list[Batch]:
        """n batches of consecutive rows, as even as can be, larger ones first."""
        if _rows.whole_number("chunk", n) < 1:
            raise ValueError(f"a batch cannot be cut into {n} parts")
        size, more = divmod(self.__len__(), n)
        bounds = [i * size + min(i, more) for i in range(n + 1)]
        return [self._slice(bounds[i], bounds[i + 1]) for i in range(n)]

    def split(self, rows: int) -> list[Batch]:
        """Batches of so many consecutive rows; the last may have fewer."""
        if _rows.whole_number("split", rows) < 1:
            raise ValueError(f"a batch cannot be split into batches of {rows} rows")
        total = self.__len__()
        return [self._slice(at, min(at + rows, total)) for at in range(0, total, rows)]

    @classmethod
    def concat(cls, batches: Iterable[Batch]) -> Batch:
        """The rows of batches with the same columns, one after another.

        Of their metas the first's keys win; dicts under "metrics" merge by sub-key.
        """
        given = list(batches)
        if not given:
            raise ValueError("no batches to put together: pass one at least")
        for at, batch in enumerate(given):
            if not isinstance(batch, Batch):
                raise TypeError(
                    f"batches are put together, and number {at} is a {_blame.type_name(batch)}: "
                    "take muster.get(…) of a ref, Batch.of(…) of others' types"
                )
        some = [batch for batch in given if batch._live()] or given
        _parts.check_columns([batch.columns for batch in some])
        rows = sum(map(len, some))
        cuts = [batch._cut for batch in some if batch._rows]
        parts = _parts.concat([batch._live() for batch in some])
        metas = _metas.distinct(meta for batch in given for meta in batch._told())
        return cls._of(rows, parts, _rows.join_cuts(cuts), metas)

    # --- other columns -------------------------------------------------------------------

    def select(self, *names: str) -> Batch:
        """These columns alone, in this order."""
        for name in names:
            self._part(name)
        if len(set(names)) < len(names):
            raise ValueError(f"a column was selected twice: {', '.join(names)}")
        return self._like(_parts.select(self._live(), names))

    def drop(self, *names: str) -> Batch:
        """All columns but these."""
        for name in names:
            self._part(name)
        return self.select(*(name for name in self.columns if name not in names))

    def rename(self, names: Mapping[str, str]) -> Batch:
        """The same columns, those in ``names`` under other names."""
        for old, new in names.items():
            self._part(old)
            _drafts.check_name(new)
        now = [names.get(name, name) for name in self.columns]
        twice = sorted({name for name in now if now.count(name) > 1})
        if twice:
            raise ValueError(f"two columns would be called {', '.join(map(repr, twice))}")
        return self._like(_parts.rename(self._live(), names))

    def with_columns(self, columns: Mapping[str, Any]) -> Batch:
        """These columns beside, or instead of, its own."""
        more = Batch(columns)
        if not more._live():
            return self._like(list(self._live()))
        if self._live() and len(more) != len(self):
            name = more.columns[0]
            raise ValueError(f"column {name!r} has {len(more)} rows, the batch {len(self)}")
        kept = [name for name in self.columns if name not in more]
        parts = _parts.select(self._live(), kept) + more._live()
        order = [*self.columns, *(name for name in more.columns if name not in self)]
        return self._like(_parts.select(parts, order), len(more))

    def union(self, other: Batch) -> Batch:
        """The columns of both, which have the same rows."""
        mine, its = self._live(), other._live()
        if mine and its and len(self) != len(other):
            raise ValueError(f"a batch of {len(self)} rows and one of {len(other)} have no union")
        both = [name for name in other.columns if name in self]
        clash = [n for n in both if not _parts.same_rows(self._part(n), other._part(n), n)]
        if clash:
            raise ValueError(
                f"both batches have the columns {', '.join(map(repr, clash))}, and they are not "
                "the same: drop or rename them in one"
            )
        more = _parts.select(its, [name for name in other.columns if name not in self])
        metas = _metas.distinct([*self._told(), *other._told()])
        cut = self._cut if mine else other._cut
        return Batch._of(len(self) if mine else len(other), [*mine, *more], cut, metas)

    def with_meta(self, **meta: Any) -> Batch:
        """The same rows with these entries in its meta."""
        made = self._like(self._live())
        made._metas = _metas.changed(made._metas, meta)
        return made

    # --- how it is cut -------------------------------------------------------------------

    def balanced(self, by: str | Sequence[float] | np.ndarray[Any, Any]) -> Batch:
        """Cut so that shards weigh the same: by a column of numbers, by the lengths of the rows
        of another one, or by a number for each row."""
        values: Any = by
        if isinstance(by, str):
            part = self._part(by)
            values = _blocks.lengths_of(part.columns[by], part.pieces)
            values = self._value(by) if values is None else values
        weights = _rows.weights(f"column {by!r}" if isinstance(by, str) else "the weights", values)
        if len(weights) != len(self):
            raise ValueError(f"{len(weights)} weights for {len(self)} rows")
        return self._like(self._live(), cut=(self._cut or Cut())._replace(weights=weights))

    def grouped(self, by: str | Sequence[Any] | np.ndarray[Any, Any]) -> Batch:
        """Cut so that rows with the same value stay together: of a column, or one for each row."""
        values = self._value(by) if isinstance(by, str) else by
        if len(values) != len(self):
            raise ValueError(f"{len(values)} groups for {len(self)} rows")
        return self._like(
            self._live(), cut=(self._cut or Cut())._replace(groups=_rows.groups(values))
        )

    def multiple_of(self, k: int) -> Batch:
        """Cut so that shards have a multiple of k rows; the last rows may be fewer."""
        if not 1 <= (k := _rows.whole_number("multiple_of", k)) <= _rows.MAX_ROWS:
            raise ValueError(f"no batch can be cut to multiples of {k}")
        cut = (self._cut or Cut())._replace(multiple=0 if k == 1 else k)
        return self._like(self._live(), cut=cut.or_none())

    # --- as something else ---------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Every column, as ``b[name]`` gives it."""
        held = self._held()
        found = {name: self._value(name) for name in self.columns}
        del held
        return found

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every column as an array; lists that are no numbers become arrays of objects."""
        from . import _adapters

        return _adapters.to_numpy(self)

    def to_torch(self, device: Any = None, columns: Iterable[str] | None = None) -> dict[str, Any]:
        """Columns as tensors, ragged ones as lists of tensors, on a device if one is named.

        Without ``columns``, all that torch has a type for.
        """
        from . import _adapters

        return _adapters.to_torch(self, device, columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table over the same memory where the rows are ranges."""
        from . import _arrow

        return _arrow.to_table(self)

    def to_hf(self) -> Any:
        """A datasets.Dataset."""
        from . import _adapters

        return _adapters.to_hf(self)

    def to_dataproto(self, cls: Any) -> Any:
        """``cls(batch=…, non_tensor_batch=…, meta_info=…)``: tensors, the rest, the meta."""
        from . import _adapters

        return _adapters.to_dataproto(self, cls)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write a file that others read: .parquet, .arrow or .feather by its suffix."""
        from . import _arrow

        _arrow.export(self, path)

    @classmethod
    def from_arrow(cls, table: Any, *, pickle: bool = False) -> Batch:
        """A batch of a pyarrow Table or RecordBatch, or of what pyarrow makes a table of.

        Objects that to_arrow() pickled are only rebuilt with ``pickle=True``: who can write
        the table can then run code here.
        """
        from . import _arrow

        return _arrow.from_table(table, pickle)

    @classmethod
    def from_hf(cls, dataset: Any) -> Batch:
        """A batch of a datasets.Dataset."""
        from . import _adapters

        return _adapters.from_hf(dataset)

    @classmethod
    def from_dataproto(cls, proto: Any) -> Batch:
        """A batch of what has ``batch``, ``non_tensor_batch`` and ``meta_info``."""
        from . import _adapters

        return _adapters.from_dataproto(proto)

    @classmethod
    def of(cls, value: Any) -> Batch:
        """A batch of whatever one can be made of: a dict of columns, a list of dicts, a
        DataProto, a table, a dataset."""
        from . import _adapters

        return value if isinstance(value, Batch) else _adapters.batch_of(value)

    # --- its end -------------------------------------------------------------------------

    def release(self) -> None:
        """Give up what the batch holds, now. Arrays that were read from it stay good; the
        batch itself cannot be used any more."""
        self._parts, self._cache, self._metas, self._cut = None, {}, [], None
        self._rows_made = {}
        self._came = self._one = self._look = None

    def __enter__(self) -> Batch:
        self._live()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # --- over the wire -------------------------------------------------------------------

    def _encode(self, bufs: list[Any], pickle: str = "on") -> bytes:
        """The payload of its extension; appends its buffers to bufs."""
        came = self._as_it_came(bufs)
        if came is not None:
            return came
        self._parts = parts = _parts.stored(self._live(), pickle)
        numbers: dict[int, int] = {}
        for part in parts:
            for block, _ in part.pieces:
                if id(block) not in numbers:
                    numbers[id(block)] = len(numbers)
                    bufs.append(block.source.buffer())
        metas = []
        for meta in _metas.distinct(self._told()):
            value, its = meta.encoded(pickle)
            bufs += its
            metas.append((value, len(its), meta.origin))
        named = [(_parts.wire_names(part.columns), part.pieces) for part in parts]
        handle = Handle(self._rows, named, self._cut, metas)
        return _rows.pack(handle, lambda block: numbers[id(block)])

    def _as_it_came(self, bufs: list[Any]) -> bytes | None:
        """As `_encode`, if nothing has changed since it came from somewhere else."""
        came, metas = self._came, self._metas
        if came is None or (len(metas) > 1 and len(_metas.distinct(metas)) < len(metas)):
            return None
        bufs += came[1]
        payload: bytes = came[0]
        return payload

    @staticmethod
    def _decode(payload: Any, bufs: Sequence[Any]) -> Any:
        """The batch of a payload and its own buffers. Opens none of its objects. Where it
        stands for an object of another class, that is made of it."""
        payload = bytes(payload)
        if len(bufs) == 1 and type(bufs[0]) is _objects.Stored:
            one = _legs.range_of(payload)
            if one is not None:
                made = Batch.__new__(Batch)  # as in _of
                made._rows, made._parts, made._cut, made._cache = one[2] - one[1], [], None, {}
                made._metas, made._one, made._came = [], (one, bufs[0]), (payload, bufs)
                made._look, made._looked, made._rows_made = None, False, {}
                return made
        rows, named, cut, told = _rows.unpack(payload, len(bufs))
        objects = len(bufs)
        for _, n, _ in told:
            objects -= n
        blocks = [Block(None, _objects.from_buffer(buf)) for buf in bufs[:objects]]
        parts = []
        for names, pieces in named:
            its = [_new(Piece, (blocks[block], some)) for block, some in pieces]
            parts.append(_new(Part, (_parts.from_wire(names), its)))
        metas: list[_metas.Meta] = []
        for value, n, origin in told:
            metas.append(_metas.Meta.came(value, tuple(bufs[objects : objects + n]), origin))
            objects += n
        made = Batch._of(rows, parts, cut, metas)
        if _wire.Reference not in map(type, bufs):
            made._came = payload, bufs
        return _metas.adopted(made, metas[0]) if metas else made

    def __reduce_ex__(self, protocol: Any) -> Any:
        import pickle

        content: Any = _parts.content(self._rows, self._live())
        data: Any = pickle.PickleBuffer(content) if protocol >= 5 else content.tobytes()
        cut = None if self._cut is None else tuple(self._cut)
        metas = [(meta.decoded(), meta.origin) for meta in self._told()]
        return _unpickled, (data if self.columns else None, self._rows, cut, metas)

    def __copy__(self) -> Batch:
        return self._like(list(self._live()))


def _unpickled(data: Any, rows: int, cut: Any, metas: list[tuple[dict[Any, Any], int]]) -> Batch:
    parts = []
    if data is not None:
        block = Block(None, Inline(data))
        names = {name: name for name in block.names()}
        parts.append(Part(names, [Piece(block, range(rows))]))
    told = [_metas.Meta(values, origin) for values, origin in metas]
    return Batch._of(rows, parts, None if cut is None else Cut(*cut), told)
