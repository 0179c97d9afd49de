"""TLS to a real PostgreSQL server: each mode does what it says, for both drivers."""

import os
import pwd
import shutil
import subprocess

import pytest
from cdc_postgres_kit import VERSIONS, open_to_others, options_of, run, server

from headwater.cdc.external_table import SplitOptions
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.errors import HeadwaterError
from servers import not_available

HBA = """
hostssl all all 127.0.0.1/32 trust
hostnossl all postgres 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate authority, a certificate for 127.0.0.1, and an authority of strangers."""
    if shutil.which("openssl") is None:
        not_available("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    open_to_others(folder)

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("root", "stranger"):
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-days", "30", "-keyout", f"{name}.key", "-out", f"{name}.crt",
        )  # fmt: skip
    for name, address in (("right", "IP:127.0.0.1"), ("wrong", "DNS:elsewhere.example")):
        (folder / "names").write_text(f"subjectAltName={address}\n")
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "root.crt", "-CAkey", "root.key",
            "-CAcreateserial", "-days", "30", "-extfile", "names", "-out", f"{name}.crt",
        )  # fmt: skip
        key = folder / f"{name}.key"
        key.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(key, pwd.getpwnam("nobody").pw_uid, -1)
    (folder / "pg_hba.conf").write_text(HBA)
    return folder


@pytest.fixture(scope="module", params=["right", "wrong"])
def served(request, certificates):
    """Debian's server, since the wheel's is built without TLS."""
    versions = [version for version in VERSIONS if version != "wheel"]
    if not versions:
        not_available("no PostgreSQL with TLS is installed")
    settings = (
        "ssl=on",
        f"ssl_cert_file={certificates}/{request.param}.crt",
        f"ssl_key_file={certificates}/{request.param}.key",
        f"hba_file={certificates}/pg_hba.conf",
    )
    with server(versions[-1], *settings) as url:
        run(url, "CREATE ROLE careful LOGIN SUPERUSER", "CREATE TABLE t (id int PRIMARY KEY)")
        yield url, request.param


@pytest.mark.parametrize(
    ("mode", "root", "works_for"),
    [
        ("disable", "", ""),
        ("prefer", "", "right wrong"),
        ("require", "", "right wrong"),
        ("verify-ca", "root", "right wrong"),
        ("verify-ca", "stranger", ""),
        ("verify-full", "root", "right"),
        ("verify-full", "stranger", ""),
    ],
)
def test_each_mode_does_what_it_says(served, certificates, mode, root, works_for):
    """The role may come in by TLS only; the certificate is for this address, or for another."""
    url, which = served
    options = options_of(
        url,
        username="careful",
        ssl_mode=mode,
        **({"ssl_root_cert": f"{certificates}/{root}.crt"} if root else {}),
    )
    database = PostgresDatabase(options)

    def work():
        table = database.open_table("t")
        [split] = table.splits(SplitOptions())
        chunk = table.read_chunk(split, None, max_rows=1, max_bytes=1 << 20)
        table.close()
        return chunk.rows.num_rows

    if which in works_for:
        assert work() == 0
    else:
        with pytest.raises(HeadwaterError):
            work()


def test_a_root_certificate_that_is_not_there_is_named(served, certificates):
    url, _ = served
    options = options_of(
        url, username="careful", ssl_mode="verify-full", ssl_root_cert=f"{certificates}/none.crt"
    )
    with pytest.raises(HeadwaterError) as caught:
        PostgresDatabase(options).validate()
    assert "ssl.root.cert" in str(caught.value)
