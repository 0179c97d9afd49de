"""`headwater serve`: an engine in the foreground, with an endpoint for PostgreSQL clients."""

import asyncio
import os
import signal
import ssl
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError
from headwater.runtime.engine import Engine
from headwater.session.serve import DEFAULT_HOST, DEFAULT_PORT, Serving

_STOP_S = 50.0
"""Ending takes a second or two; a Spark that hangs or still starts must not keep us longer."""


def serve(  # noqa: PLR0913  one argument per option of the command
    workspace: Path,
    *,
    listen: str,
    take_over: bool,
    users_file: Path | None,
    certificate: Path | None,
    key: Path | None,
    settings: Mapping[str, Any],
) -> None:
    """Serve until a signal comes, or until the engine ends by itself with an error."""
    host, port = address_of(listen)
    serving = Serving(
        Engine(workspace, settings=settings, take_over=take_over),
        host=host,
        port=port,
        tls=_tls(certificate, key),
        users=None if users_file is None else read_users(users_file),
    )
    asyncio.run(_serve(serving))


async def _serve(serving: Serving) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told_to_stop() -> None:
        if not stop.is_set():
            stop.set()
            _end_anyway()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop)
    started = asyncio.ensure_future(serving.__aenter__())
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait([started, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        # Told to stop while starting: what has begun is ended first.
        await asyncio.wait([started])
    started.result()
    warming: asyncio.Future[Any] | None = None
    try:
        host, port = serving.address
        if not stop.is_set():
            _say(f"ready: postgresql://root@{host}:{port}/dev")
            if serving.engine.settings.now.spark_early:
                warming = asyncio.ensure_future(asyncio.to_thread(serving.engine.spark))
            failed = asyncio.ensure_future(serving.engine.wait_failed())
            await asyncio.wait([waiting, failed], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            failed.cancel()
        _say("stopping")
    finally:
        waiting.cancel()
        await serving.__aexit__(None, None, None)
        if warming is not None:
            await asyncio.gather(warming, return_exceptions=True)
    _say("stopped")


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Whoever read the first line and left must not end the engine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_anyway() -> None:
    """See to it that the process ends in time, as after a crash, which loses nothing."""

    def end() -> None:
        print("what still runs is left to itself", file=sys.stderr, flush=True)
        os._exit(0)

    timer = threading.Timer(_STOP_S, end)
    timer.daemon = True
    timer.start()


def address_of(text: str) -> tuple[str, int]:
    """HOST:PORT, :PORT or PORT; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon and not port.isdigit():
        host, port = text, str(DEFAULT_PORT)
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f'"{text}" is not an address', hint="Give HOST:PORT, for example 127.0.0.1:4566."
        )
    return host.strip("[]") or DEFAULT_HOST, int(port)


def read_users(file: Path) -> dict[str, str | None]:
    """Names and passwords: one `name:password` per line, or PostgreSQL's SCRAM verifier."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read", detail=error.strerror or "", hint="Check --users-file."
        ) from error
    users: dict[str, str | None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"line {number} of {file.name} is not name:password")
        users[name.strip()] = password or None
    return users


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate} and {key} are no certificate and key") from error
    return context
