"""Makes a certificate authority, the server's certificate and the devices' keys, all on elliptic curves."""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmrn_app.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1")  # for the operator, in every server's certificate
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 730
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that nobody but its owner can ever read; an existing file is replaced atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    partial.replace(path)


def make_authority(key_path: Path, certificate_path: Path) -> None:
    """Write the private key and the self-signed certificate of a new authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmrn CA")])
    usage = _usage("key_cert_sign", "crl_sign")
    certificate = (
        _builder(name, name, key.public_key(), key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    write_private(key_path, _pem(key))
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))


def make_server(
    hosts: Sequence[str], authority_key: Path, authority: Path, key_path: Path, certificate_path: Path
) -> None:
    """Write a new private key and certificate of a server.

    Args:
        hosts: names and addresses by which devices reach the server; loopback is added.
        authority_key: private key of the authority that signs.
        authority: certificate of that authority.
        key_path: file to write the server's key to.
        certificate_path: file to write the server's certificate to.
    """
    signer = load_pem_private_key(authority_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmrn server")])
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), signer.public_key(), _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_private(key_path, _pem(key))
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))


def expired(certificate_path: Path) -> datetime | None:
    """Return when a certificate has ended; None if it has not, or cannot be read."""
    try:
        end = x509.load_pem_x509_certificate(certificate_path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None
    return end if end < datetime.now(UTC) else None


def make_device_key(key_path: Path, public_path: Path) -> None:
    """Write a device's private and public key, in the formats that a SuperNode and `flwr` read."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(key_path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public_path.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def read_device_key(public_path: Path) -> bytes:
    """Return the public key of a device that made its key itself, as `make_device_key` writes it.

    Raises:
        ConfigError: the file holds no such key.
    """
    try:
        key = load_ssh_public_key(public_path.read_bytes())
    except (OSError, ValueError) as error:
        reason = f"is no public key: {type(error).__name__}: {error}"
        raise ConfigError(
            f"{public_path}: {reason}", code="no-key", key="--public-key", value=str(public_path)
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        reason = "is no key of P-384; make one on the device with `fedmrn-deploy key`"
        raise ConfigError(f"{public_path}: {reason}", code="no-key", key="--public-key", value=str(public_path))
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def authority_key(certificate_path: Path) -> bytes | None:
    """Return the public key of an authority in the form of a device's; None if it cannot be read."""
    try:
        key = x509.load_pem_x509_certificate(certificate_path.read_bytes()).public_key()
        return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    except (OSError, ValueError):
        return None


def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of a public key in OpenSSH's format, as `ssh-keygen -lf device.pub` prints it."""
    return "SHA256:" + b64encode(hashlib.sha256(b64decode(public_key.split()[1])).digest()).decode().rstrip("=")


def public_pem(public_path: Path) -> bytes:
    """Return a public key in the format in which a SuperNode sends it with each request."""
    key = load_ssh_public_key(public_path.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # devices' clocks are not exact
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
