"""A server that takes a renewed certificate while it runs, so that runs in progress go on."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import uvicorn

_SECONDS = 2.0  # between two looks at the files


def follow_certificate(config: uvicorn.Config) -> None:
    """Let a server of uvicorn load its certificate and key again when the files have changed.

    Connections that are open keep the former certificate; new ones are given the new one.

    Args:
        config: of the server, which has not been started; without effect where it has no certificate.
    """
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return
    certificate, key = Path(config.ssl_certfile), Path(config.ssl_keyfile)
    loaded = _changed(certificate, key)

    async def look() -> None:
        nonlocal loaded
        with contextlib.suppress(OSError, ssl.SSLError):  # the key is written first and does not fit until both are
            if (found := _changed(certificate, key)) != loaded and config.ssl is not None:
                config.ssl.load_cert_chain(certificate, key)
                loaded = found
                print(f"{certificate}: was renewed, and is given to new connections", flush=True)

    config.callback_notify, config.timeout_notify = look, _SECONDS  # type: ignore[assignment]


def _changed(*files: Path) -> list[int]:
    return [file.stat().st_mtime_ns for file in files]
