"""A store for tests of the SDK: real memfds over a real socket, in threads of this process.

It keeps the contract strictly: a segment is overwritten with poison the moment
its object is free, so that whoever still looks at it sees that. Which objects the
head holds, the test says.
"""

from __future__ import annotations

import array
import os
import socket
import tempfile
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from muster import _objects, _wire

POISON = 0xEE
TOKEN = "store-token"


@dataclass
class Segment:
    number: int
    fd: int
    capacity: int


@dataclass
class Object:
    number: int
    segment: Segment
    maker: Client
    size: int = 0
    what: str = ""
    sealed: bool = False
    held: bool = False
    dropped: bool = False
    views: dict[int, int] = field(default_factory=dict)


class Client:
    def __init__(self, number: int, sock: socket.socket, hello: dict[str, Any]) -> None:
        self.number = number
        self.sock = sock
        self.hello = hello
        self.has: set[int] = set()  # segments whose descriptors were sent
        self.stale: list[int] = []


class FakeStore:
    """The store of one node."""

    def __init__(self, folder: str, node: int = 0, budget: int = 1 << 40) -> None:
        self.node = node
        self.budget = budget
        self.objects: dict[int, Object] = {}
        self.idle: list[Segment] = []
        self.segments: dict[int, Segment] = {}
        self.clients: list[Client] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answering = threading.Event()  # cleared: requests are taken, answers wait
        self.answering.set()
        self.changed = threading.Condition(threading.RLock())
        self._count = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.path.join(folder, f"agent-{node}.sock"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    # --- what the head and the test do ----------------------------------------------

    def drop(self, number: int) -> None:
        """As the head, when nobody has a right to the object any more."""
        with self.changed:
            self.objects[number].held = False
            self.objects[number].dropped = True
            self._settle(self.objects[number])

    def discard_idle(self) -> None:
        """Give up all segments that are not in use."""
        with self.changed:
            while self.idle:
                segment = self.idle.pop()
                del self.segments[segment.number]
                os.close(segment.fd)
                for client in self.clients:
                    if segment.number in client.has:
                        client.has.discard(segment.number)
                        client.stale.append(segment.number)

    def views(self) -> int:
        with self.changed:
            return sum(sum(o.views.values()) for o in self.objects.values())

    def wait_for(self, what: Any, seconds: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(what, seconds), "it did not come to that"

    def used(self) -> int:
        return sum(o.segment.capacity for o in self.objects.values())

    # --- serving --------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        stream = _wire.FrameStream(sock)
        client: Client | None = None
        try:
            hello = _wire.unpack(stream.read().body)
            assert hello["role"] == "store"
            if hello["token"] != TOKEN:
                error = {"code": "auth", "message": "wrong token", "rank": -1, "exit_code": 0}
                _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(error), flags=1)
                return
            welcome = {"version": _wire.VERSION, "release": _wire.RELEASE}
            with self.changed:
                client = Client(len(self.clients), sock, hello)
                self.clients.append(client)
            _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(welcome))
            while True:
                self._take(client, stream.read())
        except (EOFError, OSError, _wire.FrameError):
            pass
        finally:
            sock.close()
            if client is not None:
                self._leave(client)

    def _leave(self, client: Client) -> None:
        with self.changed:
            for obj in [*self.objects.values()]:
                obj.views.pop(client.number, None)
                if obj.maker is client and not obj.sealed:
                    obj.dropped = True
                self._settle(obj)

    def _take(self, client: Client, frame: _wire.Frame) -> None:
        verb, message = _wire.unpack(frame.body)
        if frame.kind == _wire.KIND_NOTICE:
            with self.changed:
                getattr(self, "_" + verb)(client, message)
                self.changed.notify_all()
            return
        self.answering.wait()
        with self.changed:
            self.requests.append((verb, message))
            fds: list[int] = []
            sent: list[int] = []
            answer = getattr(self, "_" + verb)(client, message)
            flags = _wire.FLAG_ERROR if "code" in answer else 0
            if not flags:
                named = [answer.get("segment"), *(pair[0] for pair in answer.get("objects", ()))]
                for number in dict.fromkeys(named):
                    if number is not None and number not in client.has:
                        client.has.add(number)
                        sent.append(number)
                        fds.append(self.segments[number].fd)
                answer |= {"fds": sent, "stale": client.stale}
                client.stale = []
            (data,) = _wire.pack_frame(
                _wire.KIND_RESPONSE, frame.id, _wire.pack(answer), flags=flags
            )
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            # The first byte alone, as a reader has to cope with that.
            client.sock.sendmsg([data[:1]], rights)
            client.sock.sendall(data[1:])
            self.changed.notify_all()

    def _alloc(self, client: Client, message: dict[str, Any]) -> dict[str, Any]:
        size = message["size"]
        capacity = max(4096, 1 << (size - 1).bit_length())
        segment = next((s for s in self.idle if s.capacity == capacity), None)
        if segment is not None:
            self.idle.remove(segment)
        elif self.used() + capacity > self.budget:
            return {
                "code": "store_full",
                "message": f"the store of node {self.node} is full",
                "rank": -1,
                "exit_code": 0,
            }
        else:
            self._count += 1
            fd = os.memfd_create("fake-store")
            os.ftruncate(fd, capacity)
            segment = self.segments[self._count] = Segment(self._count, fd, capacity)
        self._count += 1
        number = self.node << 48 | 7 << 32 | self._count
        self.objects[number] = Object(number, segment, client)
        return {"object": number, "segment": segment.number, "capacity": capacity}

    def _open(self, client: Client, message: dict[str, Any]) -> dict[str, Any]:
        found = [self.objects.get(number) for number in message["objects"]]
        objects = []
        for obj in found:
            if obj is None or not obj.sealed:
                return {
                    "code": "not_found",
                    "message": "no such object",
                    "rank": -1,
                    "exit_code": 0,
                }
            objects.append(obj)
        for obj in objects:
            obj.views[client.number] = obj.views.get(client.number, 0) + 1
        return {"objects": [[obj.segment.number, obj.size] for obj in objects]}

    def _seal(self, client: Client, message: dict[str, Any]) -> None:
        obj = self.objects[message["object"]]
        assert obj.maker is client and not obj.sealed
        obj.size, obj.what, obj.sealed = message["size"], message["what"], True

    def _close(self, client: Client, message: dict[str, Any]) -> None:
        for number, count in message["objects"]:
            obj = self.objects[number]
            obj.views[client.number] -= count
            assert obj.views[client.number] >= 0, "closed more often than opened"
            self._settle(obj)

    def _free(self, client: Client, message: dict[str, Any]) -> None:
        obj = self.objects[message["object"]]
        assert obj.maker is client and not obj.held
        obj.dropped = True
        self._settle(obj)

    def _settle(self, obj: Object) -> None:
        if obj.dropped and not any(obj.views.values()):
            self.objects.pop(obj.number, None)
            if obj.segment not in self.idle:
                os.pwrite(obj.segment.fd, bytes([POISON]) * obj.segment.capacity, 0)
                self.idle.append(obj.segment)
        self.changed.notify_all()

    def close(self) -> None:
        """End, and wait until nothing is left of it."""
        self.answering.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self.clients:
            try:
                client.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
        for segment in self.segments.values():
            os.close(segment.fd)
        self.segments = {}


class Stores:
    """Fake stores of some nodes, and a ledger of this process with them."""

    def __init__(self, nodes: int = 1, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mt-", dir="/tmp")
        self.nodes = [FakeStore(self._folder.name, node, **options) for node in range(nodes)]
        self.welcome = {
            "store_dir": self._folder.name,
            "store_node": 0,
            "store_token": TOKEN,
            "holder": 1 << 32 | 5,
        }
        self.ledger: _objects.Ledger

    def __enter__(self) -> Stores:
        ledger = _objects.use(self.welcome)
        assert ledger is not None
        self.ledger = ledger
        return self

    @property
    def store(self) -> FakeStore:
        return self.nodes[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        _objects.use(None)
        self.ledger.retire()
        for store in self.nodes:
            store.close()
        self._folder.cleanup()
