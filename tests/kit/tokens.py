"""An issuer of JSON Web Tokens for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

ISSUER, AUDIENCE, USER = "https://idp.example", "couchbase", "ann"
SECRET = "a secret of more than thirty-two bytes"


def private_key(algorithm: str, name: str = "") -> Any:
    """A key for an algorithm; another name is another key."""
    return _private_key(algorithm, name)


@cache
def _private_key(algorithm: str, name: str) -> Any:
    if algorithm.startswith("HS"):
        return SECRET + name
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, 2048)


def public_pem(algorithm: str, name: str = "") -> str:
    """The public half of a key."""
    return (
        private_key(algorithm, name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    )


def public_jwk(algorithm: str, name: str) -> dict[str, Any]:
    """The public half of a key as in a set of keys, with its name."""
    key = private_key(algorithm, name).public_key()
    return {**get_default_algorithms()[algorithm].to_jwk(key, as_dict=True), "kid": name}


def issuer(algorithm: str = "ES256", **fields: Any) -> dict[str, Any]:
    """An issuer in the form of /settings/jwt."""
    keys = {"publicKeySource": "pem", "publicKey": public_pem(algorithm)} if algorithm[0] != "H" else {}
    return {
        "name": ISSUER,
        "signingAlgorithm": algorithm,
        "audClaim": "aud",
        "audienceHandling": "any",
        "audiences": [AUDIENCE],
        "subClaim": "sub",
        **(keys or {"sharedSecret": SECRET}),
        **fields,
    }


def token(
    expires_s: float, algorithm: str = "ES256", *, key: Any = None, headers: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A token of the issuer. A claim that is None is left out."""
    every = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": int(expires_s), **claims}
    left = {name: value for name, value in every.items() if value is not None}
    return jwt.encode(left, private_key(algorithm) if key is None else key, algorithm, headers)
