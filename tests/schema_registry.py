"""A small schema registry over HTTP that speaks Confluent's protocol, for tests."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Registry:
    """What it holds, and how it answers."""

    address: str = ""
    login: str = ""
    """`name:password`, where it asks for one."""
    schemas: list[str] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By subject: a status and a message."""

    def schema(self, number: int) -> Any:
        """A schema by its number."""
        return json.loads(self.schemas[number - 1])

    def register(self, subject: str, schema: str) -> int:
        """The number of a schema, the same for the same text."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """A registry on a free port."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, subjects, subject, versions = self.path.split("/")
            wanted = base64.b64encode(registry.login.encode()).decode()
            if (subjects, versions) != ("subjects", "versions"):
                self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
            elif registry.login and self.headers["Authorization"] != f"Basic {wanted}":
                self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            elif unquote(subject) in registry.refuses:
                status, message = registry.refuses[unquote(subject)]
                self._answer(status, {"error_code": status, "message": message})
            else:
                self._answer(200, {"id": registry.register(unquote(subject), body["schema"])})

        def _answer(self, status: int, body: Any) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
