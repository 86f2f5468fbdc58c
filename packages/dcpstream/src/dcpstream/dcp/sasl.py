"""SASL PLAIN, SCRAM and OAUTHBEARER, both ends.

Sans-IO: the caller moves the bytes (SASL_AUTH, SASL_STEP and their answers) and supplies every random value, so that a
whole exchange can be replayed. Passwords are compared in constant time. A login of an unknown user takes as many
messages as one of a known user.

Client: `start()` returns the value of SASL_AUTH; on AUTH_CONTINUE `step()` returns the value of SASL_STEP; on SUCCESS
`finish()` checks that the server knew the password too.
Server: `start()` takes mechanism and value of SASL_AUTH, `step()` the value of SASL_STEP; both return a `ServerStep`.

A token (OAUTHBEARER) is sent as it is, like a password in PLAIN. As on the server, it takes one message: a refusal is
the status, and not the second step of RFC 7628.

Source: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 and kv_engine cbsasl/oauthbearer (OAUTHBEARER), RFC 4013 (SASLprep,
of names only: client libraries leave passwords as they are), kv_engine docs/sasl.md. As on the server, there is no
channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from dcpstream.errors import ConfigError, LocalProtocolError, RemoteProtocolError

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
"""The mechanism of tokens; it has no place among those for passwords."""

_HASHES: Mapping[str, str] = MappingProxyType(
    {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
)

MECHANISMS: tuple[str, ...] = (*_HASHES, PLAIN)
"""The mechanisms for passwords of both ends, strongest first, which is the order of the server's list."""

DEFAULT_ITERATIONS = 4096
"""Rounds of PBKDF2 that a server asks for: the least that RFC 5802 allows. A login then costs about 3 ms."""

MIN_ITERATIONS = 4_000
"""Fewest rounds that a client computes for a server: what was asked for comes back as a proof made with so many, and
with few whoever asked can try millions of passwords on it. RFC 5802 says 4,096 at least, yet a Couchbase cluster before
7.6 asks for 4,000 unless it was set otherwise (ns_server scram_sha.erl), and so does a later one for users of that
time. Since 7.6 new users have 15,000; `scramShaIterations` in /settings/security changes it."""

MAX_ITERATIONS = 1_000_000
"""Most rounds that a client computes for a server; a hostile server could ask for hours of work."""
_DIGITS = len(str(MAX_ITERATIONS))

MIN_NONCE_BYTES = 16
"""Least random bytes in a nonce."""

MAX_NONCE_BYTES = 256
"""Longest nonce that a client may send, as text; known clients send 24 to 48 bytes."""

KEPT_PASSWORDS = 16
"""Derived passwords that a client's process keeps: a derivation takes 2 ms or more, and all connections of a user to a
node have the same one."""

_CHECKING = "SCRAM-SHA256"
"""The mechanism whose keys check a password that came in plain text."""

_GS2_HEADER = b"n,,"
_CHANNEL_BINDING = b"c=" + base64.b64encode(_GS2_HEADER)

_BEARER_SEPARATOR = b"\x01"
"""Ends the header and each field of a message of OAUTHBEARER."""


class Outcome(Enum):
    """The server's verdict on a message."""

    CONTINUE = "continue"
    """AUTH_CONTINUE (0x21): `data` goes to the client, SASL_STEP comes next."""
    SUCCESS = "success"
    """The login is complete; `data` goes to the client."""
    REFUSED = "refused"
    """AUTH_ERROR (0x20): unknown mechanism, unknown user or wrong password; the answer does not say which."""
    MALFORMED = "malformed"
    """EINVAL (0x04): not a message of this mechanism, or an unexpected one."""


@dataclass(frozen=True, slots=True)
class ServerStep:
    """The server's answer.

    Attributes:
        data: the value of the response.
        username: of the user, after SUCCESS.
        expires_at: when the login ends, in seconds since 1970; None for never.
        holder: what the check of a token made of its holder, for the caller; None without one.
    """

    outcome: Outcome
    data: bytes = b""
    username: str | None = None
    expires_at: float | None = None
    holder: object = None


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The keys that a server derives from a password for one hash."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def _hmac(algorithm: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, algorithm)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _salted_password(algorithm: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)


_kept_salted_password = lru_cache(maxsize=KEPT_PASSWORDS)(_salted_password)
"""The same for clients, which log in again and again. Source: RFC 5802, section 5.1."""


def _scram_keys(algorithm: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    salted = _salted_password(algorithm, password, salt, iterations)
    client_key = _hmac(algorithm, salted, b"Client Key")
    return ScramKeys(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(algorithm, client_key).digest(),
        server_key=_hmac(algorithm, salted, b"Server Key"),
    )


def prepared_name(name: str) -> str | None:
    """A user's name prepared for comparison (SASLprep: equal looks, equal names); None if it is not a legal name."""
    if name.isascii():
        return name if name.isprintable() else None
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in name if not stringprep.in_table_b1(char)
    )
    result = unicodedata.normalize("NFKC", mapped)
    if not result or any(table(char) for table in _PROHIBITED for char in result):
        return None
    if any(map(stringprep.in_table_d1, result)):
        # A name with right-to-left letters must begin and end with one, and have no left-to-right ones.
        is_mixed = any(map(stringprep.in_table_d2, result))
        if is_mixed or not (stringprep.in_table_d1(result[0]) and stringprep.in_table_d1(result[-1])):
            return None
    return result


_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _escaped(username: str) -> bytes:
    return username.replace("=", "=3D").replace(",", "=2C").encode()


def _unescaped(text: bytes) -> str | None:
    name = text.decode(errors="replace")
    if any(part[:2] not in ("2C", "3D") for part in name.split("=")[1:]):
        return None
    return name.replace("=2C", ",").replace("=3D", "=")


def _attributes(message: bytes) -> dict[bytes, bytes]:
    """`a=1,b=2` as a dict; parts that are not attributes are left out."""
    return {part[:1]: part[2:] for part in message.split(b",") if part[1:2] == b"="}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def strongest_mechanism(offered: str | bytes, *, allow_plain: bool = True) -> str:
    """The strongest of our mechanisms in the answer to SASL_LIST_MECHS.

    Raises:
        ConfigError: none of ours is offered.
    """
    names = (offered.decode(errors="replace") if isinstance(offered, bytes) else offered).split()
    for name in MECHANISMS:
        if name in names and (allow_plain or name != PLAIN):
            return name
    wanted = MECHANISMS if allow_plain else tuple(_HASHES)
    raise ConfigError("mechanism", " ".join(names), f"one of {', '.join(wanted)} must be offered by the server")


class ClientLogin:
    """One login of a client.

    Args:
        mechanism: one of `MECHANISMS`, or OAUTHBEARER.
        username: with OAUTHBEARER, empty: the token names the user.
        password: with OAUTHBEARER, the token.
        nonce: at least 16 random bytes (used by SCRAM alone).

    Raises:
        ConfigError: the mechanism is unknown, or the nonce too short.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: bytes = b"") -> None:
        if mechanism not in (*MECHANISMS, OAUTHBEARER):
            raise ConfigError("mechanism", mechanism, f"one of {', '.join(MECHANISMS)}")
        if mechanism in _HASHES and len(nonce) < MIN_NONCE_BYTES:
            raise ConfigError("nonce", f"{len(nonce)} bytes", f"at least {MIN_NONCE_BYTES} random bytes")
        self.mechanism = mechanism
        self._username = username
        self._password = password
        self._nonce = base64.b64encode(nonce)
        self._first_bare = b"n=" + _escaped(username) + b",r=" + self._nonce
        self._server_signature: bytes | None = None

    def start(self) -> bytes:
        """The value of SASL_AUTH."""
        if self.mechanism == PLAIN:
            return b"\0" + self._username.encode() + b"\0" + self._password.encode()
        if self.mechanism == OAUTHBEARER:
            return _BEARER_SEPARATOR.join((_GS2_HEADER, b"auth=Bearer " + self._password.encode(), b"", b""))
        return _GS2_HEADER + self._first_bare

    def step(self, server_data: bytes) -> bytes:
        """The value of SASL_STEP, for the value of an AUTH_CONTINUE answer.

        Raises:
            RemoteProtocolError: the server's message is not SCRAM, its nonce does not begin with ours, or it asks for
                too few or too many rounds.
            LocalProtocolError: the mechanism has no second step.
        """
        if self.mechanism not in _HASHES:
            raise LocalProtocolError(f"{self.mechanism} is done in one message, yet the server asks to continue")
        if self._server_signature is not None:
            raise RemoteProtocolError("the server asks to continue a SCRAM login a second time")
        algorithm = _HASHES[self.mechanism]
        fields = _attributes(server_data)
        nonce, salt, rounds = fields.get(b"r", b""), _unbase64(fields.get(b"s", b"")), fields.get(b"i", b"")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise RemoteProtocolError("the server's nonce does not extend ours: it is no answer to this login")
        if not salt or not rounds.isdigit() or len(rounds) > _DIGITS or int(rounds) > MAX_ITERATIONS:
            raise RemoteProtocolError(f"not a SCRAM challenge, or one of more than {MAX_ITERATIONS} rounds")
        if int(rounds) < MIN_ITERATIONS:
            raise RemoteProtocolError(
                f"the server asks for {int(rounds)} rounds of hashing, fewer than {MIN_ITERATIONS}: a proof made with "
                "so few shows too much of the password. Raise scramShaIterations in the server's security settings and "
                "set the password again"
            )
        without_proof = _CHANNEL_BINDING + b",r=" + nonce
        auth_message = b",".join((self._first_bare, server_data, without_proof))
        salted = _kept_salted_password(algorithm, self._password, salt, int(rounds))
        client_key = _hmac(algorithm, salted, b"Client Key")
        stored_key = hashlib.new(algorithm, client_key).digest()
        proof = _xor(client_key, _hmac(algorithm, stored_key, auth_message))
        self._server_signature = _hmac(algorithm, _hmac(algorithm, salted, b"Server Key"), auth_message)
        return without_proof + b",p=" + base64.b64encode(proof)

    def finish(self, server_data: bytes) -> None:
        """Check the value of the SUCCESS answer.

        Raises:
            RemoteProtocolError: the server did not prove that it knows the password.
        """
        if self.mechanism not in _HASHES:
            return
        if self._server_signature is None:
            raise RemoteProtocolError("the server ended a SCRAM login before proving itself")
        signature = _unbase64(_attributes(server_data).get(b"v", b"")) or b""
        if not hmac.compare_digest(signature, self._server_signature):
            raise RemoteProtocolError("the server's signature is wrong: it does not know the password")


class Credentials:
    """The keys that check a user's password, derived once. The password itself is not kept.

    Args:
        password: the password.
        salt: random bytes, unique to this user.
        iterations: rounds of PBKDF2.
        has_scram: whether the user may log in with SCRAM. A server lets those whose passwords another service checks
            (LDAP) log in with PLAIN alone.
    """

    __slots__ = ("_keys", "_seen", "has_scram")

    def __init__(
        self, password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS, *, has_scram: bool = True
    ) -> None:
        self.has_scram = has_scram
        self._keys = {
            mechanism: _scram_keys(algorithm, password, salt, iterations) for mechanism, algorithm in _HASHES.items()
        }
        self._seen: bytes | None = None

    @classmethod
    def _of(cls, keys: dict[str, ScramKeys]) -> Credentials:
        made = cls.__new__(cls)
        made._keys, made._seen, made.has_scram = keys, None, True
        return made

    @classmethod
    def of_nobody(cls, secret: bytes, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> Credentials:
        """Keys that no password has: drawn from a secret, and so without the work of a derivation."""
        return cls._of(
            {
                mechanism: ScramKeys(
                    salt, iterations, _hmac(algorithm, secret, b"stored"), _hmac(algorithm, secret, b"server")
                )
                for mechanism, algorithm in _HASHES.items()
            }
        )

    def with_salt(self, salt: bytes) -> Credentials:
        """The same keys with another salt: for names that no user has."""
        return self._of({mechanism: replace(keys, salt=salt) for mechanism, keys in self._keys.items()})

    def to_json(self) -> dict[str, Any]:
        """JSON to be stored: per mechanism salt, rounds and keys, bytes in base64."""
        return {
            mechanism: {
                "salt": _text(keys.salt),
                "iterations": keys.iterations,
                "stored_key": _text(keys.stored_key),
                "server_key": _text(keys.server_key),
            }
            for mechanism, keys in self._keys.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Credentials:
        """Read the result of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: `data` is not such a result.
        """
        keys = {}
        for mechanism, algorithm in _HASHES.items():
            entry = data[mechanism]
            salt, stored, server = (
                base64.b64decode(entry[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            size, rounds = hashlib.new(algorithm).digest_size, entry["iterations"]
            if not salt or len(stored) != size or len(server) != size or not 0 < int(rounds) <= MAX_ITERATIONS:
                raise ValueError(f"the keys of {mechanism} have the wrong size")
            keys[mechanism] = ScramKeys(salt, int(rounds), stored, server)
        return cls._of(keys)

    def __repr__(self) -> str:
        """A text without the password and its keys."""
        return "Credentials(…)"

    def matches(self, password: bytes) -> bool:
        """Whether this is the password; the keys are compared in constant time.

        A keyed hash of the last right password is kept in memory, because a derivation for each HTTP request would cost
        milliseconds. A wrong password always costs a whole derivation, for known and unknown users alike.
        """
        keys = self._keys[_CHECKING]
        algorithm = _HASHES[_CHECKING]
        seen = _hmac(algorithm, keys.stored_key + keys.salt, password)
        if self._seen is not None and hmac.compare_digest(seen, self._seen):
            return True
        salted = hashlib.pbkdf2_hmac(algorithm, password, keys.salt, keys.iterations)
        stored_key = hashlib.new(algorithm, _hmac(algorithm, salted, b"Client Key")).digest()
        is_right = hmac.compare_digest(stored_key, keys.stored_key)
        if is_right:
            self._seen = seen
        return is_right

    def keys(self, mechanism: str) -> ScramKeys:
        """The keys for a SCRAM mechanism."""
        return self._keys[mechanism]


def _no_token(_username: str, _token: str) -> ServerStep:
    """Default of `ServerLogin`: no token is right."""
    return ServerStep(Outcome.REFUSED)


class ServerLogin:
    """One login on a server's connection; may be started again at any time.

    Args:
        find_user: returns the user's credentials, or None.
        nonce: returns at least 16 fresh random bytes at each call.
        decoy: returns credentials that no password fits, always the same ones for a name; an unknown user goes through
            the exchange with them.
        offered: the mechanisms that may be used; the others are refused like unknown ones.
        check_token: takes the user's name, empty if the client gave none, and a token; returns SUCCESS or REFUSED.
            Called for OAUTHBEARER alone.
    """

    def __init__(
        self,
        find_user: Callable[[str], Credentials | None],
        nonce: Callable[[], bytes],
        decoy: Callable[[str], Credentials],
        offered: tuple[str, ...] = MECHANISMS,
        check_token: Callable[[str, str], ServerStep] = _no_token,
    ) -> None:
        self._check_token = check_token
        self._find_user = find_user
        self._new_nonce = nonce
        self._decoy = decoy
        self.offered = offered
        self._exchange: _ScramExchange | None = None

    def start(self, mechanism: str | bytes, data: bytes) -> ServerStep:
        """Answer SASL_AUTH."""
        self._exchange = None
        name = mechanism.decode(errors="replace") if isinstance(mechanism, bytes) else mechanism
        if name not in self.offered:
            return ServerStep(Outcome.REFUSED)
        if name == PLAIN:
            return self._plain(data)
        if name == OAUTHBEARER:
            return self._bearer(data)
        # `p=…` asks for channel binding, which no mechanism here has; it must not pass as a login without binding.
        if not data.startswith((b"n,", b"y,")) or b"," not in data[2:]:
            return ServerStep(Outcome.MALFORMED)
        bare = data.split(b",", 2)[2]
        fields = _attributes(bare)
        username = _unescaped(fields.get(b"n", b""))
        # `m=…` is a mandatory extension; none is supported.
        if not username or bare.startswith(b"m=") or not 0 < len(fields.get(b"r", b"")) <= MAX_NONCE_BYTES:
            return ServerStep(Outcome.MALFORMED)
        decoy = self._decoy(username)
        credentials = self._find_user(username)
        if credentials is not None and not credentials.has_scram:
            credentials = None
        keys = (credentials or decoy).keys(name)
        nonce = fields[b"r"] + base64.b64encode(self._new_nonce())
        challenge = b"r=%b,s=%b,i=%d" % (nonce, base64.b64encode(keys.salt), keys.iterations)
        gs2_header = data[: len(data) - len(bare)]
        self._exchange = _ScramExchange(
            mechanism=name,
            username=username if credentials else None,
            keys=keys,
            nonce=nonce,
            binding=base64.b64encode(gs2_header),
            messages=bare + b"," + challenge,
        )
        return ServerStep(Outcome.CONTINUE, challenge)

    def step(self, mechanism: str | bytes, data: bytes) -> ServerStep:
        """Answer SASL_STEP."""
        exchange, self._exchange = self._exchange, None
        name = mechanism.decode(errors="replace") if isinstance(mechanism, bytes) else mechanism
        if exchange is None or name != exchange.mechanism:
            return ServerStep(Outcome.MALFORMED)
        return exchange.finish(data)

    def _plain(self, data: bytes) -> ServerStep:
        parts = data.split(b"\0", 2)
        if len(parts) != 3:
            return ServerStep(Outcome.MALFORMED)
        username = parts[1].decode(errors="replace")
        decoy = self._decoy(username)
        credentials = self._find_user(username)
        is_right = (credentials or decoy).matches(parts[2].split(b"\0", 1)[0])
        if credentials is None or not is_right:
            return ServerStep(Outcome.REFUSED)
        return ServerStep(Outcome.SUCCESS, username=username)

    def _bearer(self, data: bytes) -> ServerStep:
        """Other fields than `auth` are ignored, as the server ignores them."""
        header, *fields = data.split(_BEARER_SEPARATOR)
        tokens = [field.removeprefix(b"auth=") for field in fields if field.startswith(b"auth=")]
        binding, _, names = header.partition(b",")
        if len(tokens) != 1 or binding != b"n" or not names.endswith(b",") or names.count(b",") != 1:
            return ServerStep(Outcome.MALFORMED)
        kind, _, token = tokens[0].partition(b" ")
        username = _unescaped(names[2:-1]) if names.startswith(b"a=") else ""
        is_sound = token.isascii() and token and b" " not in token
        if kind.lower() != b"bearer" or not is_sound or username is None or (names != b"," and not username):
            return ServerStep(Outcome.MALFORMED)
        return self._check_token(username, token.decode())


@dataclass(frozen=True, slots=True)
class _ScramExchange:
    """A SCRAM login between challenge and proof."""

    mechanism: str
    username: str | None
    keys: ScramKeys
    nonce: bytes
    binding: bytes
    messages: bytes

    def finish(self, data: bytes) -> ServerStep:
        """Check the client's proof."""
        algorithm = _HASHES[self.mechanism]
        without_proof, separator, encoded = data.rpartition(b",p=")
        fields, proof = _attributes(without_proof), _unbase64(encoded)
        if not separator or proof is None or len(proof) != len(self.keys.stored_key):
            return ServerStep(Outcome.MALFORMED)
        if fields.get(b"c") != self.binding or fields.get(b"r") != self.nonce:
            return ServerStep(Outcome.REFUSED)
        auth_message = self.messages + b"," + without_proof
        client_key = _xor(proof, _hmac(algorithm, self.keys.stored_key, auth_message))
        is_right = hmac.compare_digest(hashlib.new(algorithm, client_key).digest(), self.keys.stored_key)
        if not is_right or self.username is None:
            return ServerStep(Outcome.REFUSED)
        signature = _hmac(algorithm, self.keys.server_key, auth_message)
        return ServerStep(Outcome.SUCCESS, b"v=" + base64.b64encode(signature), self.username)
