"""The primitives of the protocol, all from `cryptography` and PyCryptodome, which Flower's secure aggregation uses.

Key pairs are X25519 (RFC 7748), keys are derived by HKDF-SHA256 (RFC 5869), shares are encrypted by AES-256-GCM, and
secrets of 16 bytes are shared by Shamir's scheme over GF(2^128). A private key is derived from such a secret, so that
it can be shared as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedmrn_app.errors import PayloadError

SECRET = 16  # bytes of a secret and of a share of it
PUBLIC = 32  # bytes of a public key
NONCE, TAG = 12, 16  # bytes beside an encrypted text


def derive(secret: bytes, use: str, session: bytes) -> bytes:
    """Return a key of 32 bytes for one use in one session."""
    return HKDF(hashes.SHA256(), 32, salt=session, info=b"fedmrn secure " + use.encode()).derive(secret)


def private_key(secret: bytes, session: bytes) -> X25519PrivateKey:
    """Return the private key of a secret."""
    return X25519PrivateKey.from_private_bytes(derive(secret, "private key", session))


def public_bytes(secret: bytes, session: bytes) -> bytes:
    """Return the public key of a secret, 32 bytes."""
    return private_key(secret, session).public_key().public_bytes_raw()


def agree(secret: bytes, other: bytes, use: str, session: bytes) -> bytes:
    """Return the key that the owner of a secret shares with the owner of a public key.

    Raises:
        PayloadError: the public key is one of the few that agree on zero with everybody.
    """
    try:
        shared = private_key(secret, session).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise PayloadError("a public key is not usable", code="secure-key") from error
    return derive(shared, use, session)


def encrypt(key: bytes, text: bytes, about: bytes, nonce: bytes) -> bytes:
    """Return nonce and ciphertext of a text; `about` is authenticated with it."""
    return nonce + AESGCM(key).encrypt(nonce, text, about)


def decrypt(key: bytes, data: bytes, about: bytes) -> bytes:
    """Return the text that `encrypt` encrypted.

    Raises:
        PayloadError: it was encrypted with another key or about something else, or is damaged.
    """
    try:
        return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], about)
    except InvalidTag as error:
        raise PayloadError("an encrypted share is not authentic", code="secure-share") from error


def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Return `count` shares of a secret, of which any `needed` reconstruct it."""
    if needed == 1:
        return [secret] * count  # a polynomial of degree 0
    return [share for _, share in Shamir.split(needed, count, secret, ssss=False)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of as many shares as are needed, by their place from 1."""
    if len(shares) == 1:
        return next(iter(shares.values()))
    return bytes(Shamir.combine(list(shares.items()), ssss=False))
