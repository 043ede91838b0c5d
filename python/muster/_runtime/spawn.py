"""An interpreter of its own for one worker, where a fork is not wanted or not safe.

Speaks as a zygote does, but for ``become`` in place of ``fork``: the process
itself turns into the worker. Preloads are imported late, when the worker's
environment is complete.
"""

from __future__ import annotations

import os
import signal

from .. import _wire
from . import title, worker
from .board import Refusal
from .orders import Order, OrderSocket
from .zygote import load, refusal_map


def main() -> None:
    """Take one order over descriptor 3, and be that worker."""
    title.set_title("muster worker")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = _take(OrderSocket(fileno=3))
    if order is not None:
        worker.main(order)


def _take(sock: OrderSocket) -> Order | None:
    stream = _wire.FrameStream(sock)
    preload: tuple[str, ...] = ()
    while True:
        try:
            frame = stream.read()
        except EOFError:
            return None
        verb, body = _wire.unpack(frame.body)
        flags = 0
        order = None
        try:
            if verb == "load":
                answer = load(body["runtime"], warm=False)
                preload = tuple(body["runtime"].get("preload") or ())
            elif verb == "become":
                log = sock.take_descriptor()
                if log is None:
                    raise Refusal(
                        "protocol",
                        f"the order for {body['worker']['name']} came without its log's descriptor",
                    )
                order = Order(body, log, preload=preload)
                answer = {"pid": os.getpid()}
            else:
                raise Refusal("protocol", f"a worker to be does not know the request {verb!r}")
        except Refusal as refusal:
            answer, flags = refusal_map(refusal), _wire.FLAG_ERROR
        _wire.send_frame(sock, _wire.KIND_RESPONSE, frame.id, _wire.pack(answer), flags=flags)
        if order is not None:
            sock.close()
            return order
