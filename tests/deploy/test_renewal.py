"""A server takes a renewed certificate while it runs, also while only one of the two files is new."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import uvicorn
from cryptography import x509

from fedmrn_app.deploy.certificates import make_authority, make_server
from fedmrn_app.deploy.renewal import follow_certificate


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    make_authority(tmp_path / "ca.key", tmp_path / "ca.crt")
    renew(tmp_path)
    return tmp_path / "server.pem", tmp_path / "server.key"


def renew(folder: Path) -> None:
    authority = folder / "ca.key", folder / "ca.crt"
    make_server(["127.0.0.1"], *authority, folder / "server.key", folder / "server.pem")


def handshake(context: ssl.SSLContext, authority: Path) -> int:
    """Return the serial number of the certificate that a new connection is given, which fits its key."""
    client = ssl.create_default_context(cafile=str(authority))
    ours, theirs, incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(ours, theirs, server_hostname="127.0.0.1")
    other = context.wrap_bio(incoming, outgoing, server_side=True)
    for _ in range(10):
        for side in (one, other):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            incoming.write(theirs.read())
            ours.write(outgoing.read())
    found = one.getpeercert(binary_form=True)
    assert found
    return x509.load_der_x509_certificate(found).serial_number


def test_a_renewed_certificate_is_taken_once_its_key_fits(files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    config = uvicorn.Config(lambda *_: None, ssl_certfile=certificate, ssl_keyfile=key, log_level="error")
    follow_certificate(config)
    config.load()
    assert config.ssl is not None
    look = config.callback_notify
    assert look is not None
    first = handshake(config.ssl, tmp_path / "ca.crt")
    asyncio.run(look())  # type: ignore[arg-type]
    assert handshake(config.ssl, tmp_path / "ca.crt") == first
    (tmp_path / "new").mkdir()
    for name in ("ca.key", "ca.crt"):
        (tmp_path / "new" / name).write_bytes((tmp_path / name).read_bytes())
    renew(tmp_path / "new")
    key.write_bytes((tmp_path / "new" / "server.key").read_bytes())  # a moment between the two files
    asyncio.run(look())  # type: ignore[arg-type]
    assert handshake(config.ssl, tmp_path / "ca.crt") == first
    certificate.write_bytes((tmp_path / "new" / "server.pem").read_bytes())
    asyncio.run(look())  # type: ignore[arg-type]
    second = handshake(config.ssl, tmp_path / "ca.crt")
    assert second == x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number != first


def test_a_server_without_a_certificate_follows_none() -> None:
    config = uvicorn.Config(lambda *_: None)
    follow_certificate(config)
    assert config.callback_notify is None
