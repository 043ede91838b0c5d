"""A server of a user's own, run as a role's command: health, a call, an end on demand."""

from __future__ import annotations

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--worker-index", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--leave", type=int, default=-1)
    given, _ = parser.parse_known_args()
    if given.leave >= 0:
        print(f"cannot go on, leaving with {given.leave}", flush=True)
        raise SystemExit(given.leave)
    busy = [2]

    class Handler(BaseHTTPRequestHandler):
        def _reply(self, status: int, reply: Any) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._reply(200, {"status": "healthy"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/set_env":
                os.environ.update(body["env"])
                self._reply(200, {"status": "success"})
            elif self.path == "/create_engine":
                self._reply(200, {"status": "success", "result": None})
            elif body["method"] == "busy" and busy[0]:
                busy[0] -= 1
                self._reply(503, {"error": "later"})
            elif body["method"] == "die":
                os._exit(body["args"][0])
            elif body["method"] == "fail":
                self._reply(500, {"error": "it failed"})
            else:
                who = f"{given.role}/{given.worker_index}"
                result = [who, os.getpid(), os.environ.get("AREAL_LATE"), *body["args"]]
                self._reply(200, {"status": "success", "result": result})

        def log_message(self, format: str, *args: Any) -> None:
            pass

    time.sleep(given.delay)
    print(f"serving {given.role}", flush=True)
    ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
