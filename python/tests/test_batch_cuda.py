"""Copies to a device, with a stand-in for CUDA: who is registered when, and held how long."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from typing import Any

import fakestore
import numpy as np
import pytest
from schemas import same

from muster import Batch, _cuda, _objects, _pages

torch = pytest.importorskip("torch")


class Runtime:
    """As much of cudart as is called, told in a list."""

    def __init__(self, answer: int = 0) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.answer = answer

    def cudaHostRegister(self, address: int, length: int, flags: int) -> int:
        self.told.append(("register", address, length, flags))
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        self.told.append(("unregister", address))
        return 0


class Event:
    done: threading.Event

    def record(self, stream: Any) -> None:
        stream.runtime.told.append(("record",))

    def synchronize(self) -> None:
        assert Event.done.wait(20)


class Stream:
    def __init__(self, device: Any, runtime: Runtime) -> None:
        self.runtime = runtime

    def wait_event(self, event: Event) -> None:
        self.runtime.told.append(("wait",))

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


class Window:
    """The mapping of an object for devices, and a lease."""

    def __init__(self) -> None:
        self.endings: list[Any] = []

    def at_end(self, ending: Any) -> None:
        self.endings.append(ending)


class Segment:
    """A source in a segment that is mapped twice."""

    partial = False

    live = 0

    def __init__(self, data: bytes) -> None:
        self.private = np.frombuffer(bytearray(data), np.uint8)
        self.shared = self.private.copy()
        self.nbytes = len(data)
        self.endings: list[Any] = []

    def root(self) -> Any:
        return self.private

    def device_address(self) -> tuple[int, int, Any]:
        segment = self

        class Lease(Window):
            def __init__(self) -> None:
                super().__init__()
                Segment.live += 1

            def at_end(self, ending: Any) -> None:
                segment.endings.append(ending)

            def __del__(self) -> None:
                Segment.live -= 1

        return self.shared.ctypes.data, len(self.shared), Lease()


class Device:
    """torch as it is on a machine with a GPU, whose memory is the CPU's here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: int = 0) -> None:
        self.runtime = Runtime(answer)
        cuda = types.SimpleNamespace(
            is_available=lambda: True,
            current_device=lambda: 0,
            cudart=lambda: self.runtime,
            Stream=lambda device: Stream(device, self.runtime),
            Event=Event,
            stream=lambda stream: stream,
            current_stream=lambda device: Stream(device, self.runtime),
        )
        self.cuda = cuda
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setattr(torch, "empty", self.empty)
        self.real = torch.zeros
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)

    def empty(self, shape: Any, dtype: Any, device: Any = None) -> Any:
        return self.real(shape, dtype=dtype)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    Event.done = threading.Event()
    monkeypatch.setattr(_cuda._Device, "mappings", {})
    monkeypatch.setattr(_cuda._Device, "streams", {})
    yield Device(monkeypatch)
    Event.done.set()
    for thread in threading.enumerate():
        if thread.name == "muster-copies":
            thread.join(20)


def stored(columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Batch, Segment]:
    bufs: list[Any] = []
    payload = Batch(columns)._encode(bufs)
    segment = Segment(bytes(bufs[0]))
    with monkeypatch.context() as patch:
        patch.setattr(_objects, "from_buffer", lambda buf: segment)
        return Batch._decode(payload, bufs), segment


GIVEN: dict[str, Any] = {
    "x": np.arange(30).reshape(10, 3),
    "r": [None if i == 2 else np.arange(i) for i in range(10)],
    "t": ["a"] * 10,
    "b": torch.arange(10).to(torch.bfloat16),
}


def test_registered_once_and_held(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, segment = stored(GIVEN, monkeypatch)
    segment.shared[:] = segment.private
    found = batch.to_torch("cuda")
    assert list(found) == ["x", "r", "b"]
    assert same(found["x"], torch.from_numpy(GIVEN["x"]))
    assert found["r"][2] is None and [len(r) for r in found["r"] if r is not None][-1] == 9
    assert found["b"].dtype == torch.bfloat16
    address, length = segment.shared.ctypes.data, len(segment.shared)
    told = device.runtime.told
    assert told == [("register", address, length, 0x08), ("record",), ("wait",)]
    assert Segment.live > 0  # until the event has happened
    joined = batch[2:5].to_torch("cuda", ["x"])["x"]
    assert joined.tolist() == GIVEN["x"][2:5].tolist()
    assert [entry[0] for entry in told].count("register") == 1
    Event.done.set()
    for thread in threading.enumerate():
        if thread.name == "muster-copies":
            thread.join(20)
    assert Segment.live == 0
    for ending in segment.endings:
        ending()
    assert told[-1] == ("unregister", address)
    assert batch.to_torch("cuda", ["x"]) and told.count(("register", address, length, 8)) == 2


def copied(device: Device, batch: Batch, name: str) -> tuple[Any, bool]:
    """A column on the device, and whether it was copied from the mapping that CUDA knows."""
    before = len(device.runtime.told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
        found = batch.to_torch("cuda", [name])[name]
    return found, ("record",) in device.runtime.told[before:]


@pytest.mark.parametrize("told", [True, False])  # by the kernel, of what was written
def test_what_was_written_is_copied(
    device: Device, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    if not told:
        monkeypatch.setattr(_pages._Kernel, "pagemap", None)
    given: dict[str, Any] = {
        "x": np.arange(30000).reshape(10000, 3),
        "r": [np.arange(3) for _ in range(10000)],
        "s": [torch.arange(3) for _ in range(10000)],
        "y": np.arange(10000),
    }
    Event.done.set()
    with fakestore.Stores():
        mine = Batch(given)
        bufs: list[Any] = []
        payload = mine._encode(bufs)
        assert [type(buf) for buf in bufs] == [_objects.Stored]
        again = _objects.Stored(bufs[0].right, 0, bufs[0].nbytes)
        for came in (mine, Batch._decode(payload, [again])):
            assert [copied(device, came, name)[1] for name in given] == [True] * 4
            views = {name: came[name] for name in given if name != "y"}
            assert copied(device, came, "y")[1]  # no view was given out
            if _pages.written(0, 0):  # nobody can tell
                assert not any(copied(device, came, name)[1] for name in views)
            else:
                assert all(copied(device, came, name)[1] for name in views)
            views["x"][5000] = -1
            views["r"][0] = np.zeros(3, np.int64)  # in the list alone
            views["s"][1] = views["s"][1].flip(0)
            part = came[4000:6000]  # which reads the same memory
            for one, at in ((came, 5000), (part, 1000), (came.select("x"), 5000)):
                found, fast = copied(device, one, "x")
                assert not fast and found[at].tolist() == [-1] * 3
                assert one.to_torch(columns=["x"])["x"][at].tolist() == [-1] * 3
            assert copied(device, came, "r")[0][0].tolist() == [0, 0, 0]
            assert copied(device, came, "s")[0][1].tolist() == [2, 1, 0]
            assert copied(device, came, "y")[1]
            gathered = came[[7, 5]]
            gathered["y"][0] = -2  # in memory of its own
            found, fast = copied(device, gathered, "y")
            assert not fast and found.tolist() == [-2, 5]
            del views, part, one, found, gathered
        del mine, came, bufs, again


def test_pieces_are_copied_into_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = stored({"x": np.arange(20)}, monkeypatch)
    other, _ = stored({"x": np.arange(100, 120)}, monkeypatch)
    made = Batch.concat([one[5:], other[:9]])
    assert made.to_torch("cuda")["x"].tolist() == [*range(5, 20), *range(100, 109)]
    assert [entry[0] for entry in device.runtime.told].count("register") == 2


def test_what_cannot_be_registered_goes_the_plain_way(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []
    real = torch.Tensor.to

    def to(tensor: Any, device: Any) -> Any:
        moved.append(device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    device.runtime.answer = 801  # not supported
    cleared: list[Any] = []

    def zeros(*shape: Any, device: Any) -> Any:
        cleared.append(device)
        raise RuntimeError("CUDA error: operation not supported")  # the last one, told once

    monkeypatch.setattr(torch, "zeros", zeros)
    batch, _ = stored(GIVEN, monkeypatch)
    assert batch.to_torch("cuda", ["x"])["x"].tolist() == GIVEN["x"].tolist()
    assert batch.to_torch("cuda", ["b"])["b"].dtype == torch.bfloat16
    assert [entry[0] for entry in device.runtime.told] == ["register"]  # asked once
    assert [str(device) for device in cleared] == ["cuda:0"]  # so that nobody else is told of it
    local = Batch({"x": np.arange(3), "r": [np.arange(2), None, np.arange(1)]})
    assert local.to_torch("cuda")["x"].tolist() == [0, 1, 2]
    shuffled = batch[[5, 1, 1, 9]]
    assert shuffled.to_torch("cuda", ["x"])["x"].tolist() == GIVEN["x"][[5, 1, 1, 9]].tolist()
    assert len(moved) >= 4
    monkeypatch.setattr(torch.Tensor, "to", real)


def test_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = stored(GIVEN, monkeypatch)
    assert batch.to_torch("cpu", ["x"])["x"].tolist() == GIVEN["x"].tolist()
    assert batch.to_torch("meta", ["x"])["x"].device.type == "meta"
