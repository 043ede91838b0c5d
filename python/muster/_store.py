"""The stores of this machine, and how content gets into them and out.

Owns which store this process puts into, and the two ways of putting: `place`
for content that is written where it stays, `stow` for large buffers of a
message. The connections are `_leases`', what an object is here is `_objects`'.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _errors, _objects, _shm
from ._leases import Lease, Store
from ._objects import Right, Stored
from ._sources import Inline, Source

if TYPE_CHECKING:
    import numpy

INLINE = 64 << 10  # content of fewer bytes rides in frames
_FAR = -1  # the connection to our own store by which objects of other nodes are asked for
_ALIGN = 64  # of each buffer in an object


class Stores:
    """All stores that this process may reach, and which of them is its own."""

    def __init__(
        self, folder: str, node: int, token: str, holder: int, apart: bool = False
    ) -> None:
        self._folder = folder
        self._node = node
        self._apart = apart  # our own store gets what lies in others
        self._token = token
        self._holder = holder
        self._lock = threading.RLock()
        self.known: dict[int, list[Store]] = {}  # by node
        self._over = False

    def own(self) -> Store:
        """The store that this process puts into."""
        if self._node not in self.known and not os.path.exists(self._path(self._node)):
            from ._resources import ResourceManager

            # Where nodes are had when they are needed, a script's comes with the first pool.
            ResourceManager(num_gpus_per_node=0, num_nodes=1)
        return self.at(self._node)

    def _path(self, node: int) -> str:
        return os.path.join(self._folder, f"agent-{node}.sock")

    def at(self, node: int) -> Store:
        """The store of a node. A second connection is made for code that interrupts a request,
        as a signal handler does, and in the place of one that is lost."""
        if not self._over:
            for store in self.known.get(node, ()):
                if store.free_for_use():
                    return store
        with self._lock:
            if self._over:  # one may be left, for what is looked at: its agent has ended
                raise _ended()
            for store in self.known.get(node, ()):
                if store.free_for_use():
                    return store
            number = self._node if node == _FAR else node
            store = Store(self._path(number), f"node {number}", self._token, self._holder)
            self.known.setdefault(node, []).append(store)
            return store

    def open(self, objects: Sequence[int]) -> dict[int, Lease]:
        """A lease of each of some objects; one request to each store that has any of them. Of
        those that lie on other nodes not all may be there: see `Lease.need`."""
        by_node: dict[int, list[int]] = {}
        for object in dict.fromkeys(objects):
            node = object >> 48
            if self._apart and node != self._node:
                node = _FAR  # which may take long, and holds up nothing else
            by_node.setdefault(node, []).append(object)
        leases: dict[int, Lease] = {}
        for node, some in by_node.items():
            try:
                leases |= zip(some, self.at(node).open(some), strict=True)
            except _errors.NodeLostError:  # by a connection that was in use when all ended
                if self._over:
                    raise _ended() from None
                raise
        return leases

    def retire(self) -> None:
        """Hang up, store by store, as soon as nothing of it is looked at any more."""
        with self._lock:
            self._over = True
            for store in self._all():
                store.retire()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connections. What the parent holds can be
        read by others of our own."""
        self._lock = threading.RLock()
        for store in self._all():
            store.abandon()
        self.known = {}

    def _all(self) -> list[Store]:
        return [store for stores in self.known.values() for store in stores]


def _ended() -> _errors.ReleasedError:
    return _errors.ReleasedError("it lay in the store of a session that muster.shutdown() ended")


# --- putting content there -------------------------------------------------------------


def place(size: int, fill: Callable[[numpy.ndarray[Any, Any]], None], what: str) -> Source:
    """New content of exactly ``size`` bytes, written by ``fill``; ``what`` says for people
    what it is. What ``fill`` raises is passed on, and nothing is left behind.

    Small content rides in frames, and all content does where there is no session.
    """
    import numpy

    ledger = _objects.ledger()
    if size < INLINE or ledger is None:
        data = bytearray(size)
        fill(numpy.frombuffer(data, numpy.uint8))
        return Inline(data)
    right = _write(ledger, size, lambda view: fill(numpy.frombuffer(view, numpy.uint8)), what)
    return Stored(right, 0, size)


def stow(buffers: list[Any], chosen: Sequence[int], what: str) -> None:
    """Move the chosen ones of a message's buffers into one object, in their places."""
    ledger = _objects.ledger()
    if ledger is None:
        return
    views = [memoryview(buffers[i]).cast("B") for i in chosen]
    offsets: list[int] = []
    size = 0
    for view in views:
        offsets.append(size)
        size += -(-view.nbytes // _ALIGN) * _ALIGN

    def fill(target: memoryview) -> None:
        places = zip(views, offsets, strict=True)
        _shm.copy_all([(target[at : at + view.nbytes], view) for view, at in places])

    right = _write(ledger, size, fill, what)
    for i, view, at in zip(chosen, views, offsets, strict=True):
        buffers[i] = Stored(right, at, view.nbytes)


def _write(
    ledger: _objects.Ledger, size: int, fill: Callable[[memoryview], None], what: str
) -> Right:
    ledger.looks.let_go()  # there is room for what nobody looks at
    store = ledger.stores.own()
    right = Right(ledger, 0, store)
    account = right.account
    store.writing.append(None)
    try:
        segment = store.allocate(size, account)
        fill(_shm.view(segment.writable(size).address, size, segment))
        store.seal(account.object, size, what)
    except BaseException:
        # Not only when nobody has the traceback any more, by which right is held.
        store.freed += [account.object]
        account.object = 0
        raise
    finally:
        store.writing.pop()
        store.flush()
    return right
