"""JSON Web Tokens: the issuers that a node trusts, and the check of a token.

An issuer is configured by the JSON of the server's own settings (PUT /settings/jwt): its name is the token's `iss`, and
it has one algorithm. A token needs a signature by the issuer's key, an audience, an expiry, and a user's name. Rights
come from the external user of that name, whom the node must have; with `jitProvisioning` also from roles and groups in
the token's claims (`ClaimMap`), and then the node need not have the user.

PyJWT checks signatures, and nothing else here: times are compared with the node's own clock, which tests move. The
module needs the extra `jwt`.

Source: RFC 7519; ns_server apps/ns_server/src/menelaus_web_jwt.erl (names, defaults, limits), jwt_auth.erl (the order
of the checks, and their texts), auth_mapping.erl (rules).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard, TypeVar

from dcpstream.errors import ConfigError, DcpstreamError

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from jwt.algorithms import get_default_algorithms
except ImportError:
    _MESSAGE = "issuers of tokens need PyJWT and cryptography: pip install dcpstream-node[jwt]"
    raise ConfigError("jwt", "no PyJWT", "nothing without the extra jwt", message=_MESSAGE) from None

Found = TypeVar("Found")
_REFERENCE: Final = re.compile(r"\\.|&")
"""A reference of a template: a backslash and what it stands for, or the whole match."""

SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithm with a shared secret → least bytes of the secret. Source: RFC 7518, section 3.2."""
PUBLIC: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key."""
MIN_RSA_BITS: Final = 2048
EXPIRY_LEEWAY_S: Final = 15
MAX_EXPIRY_LEEWAY_S: Final = 300
MAX_ISSUERS: Final = 16
"""A cluster has one or a few; each costs a key in memory."""
MAX_KEYS: Final = 64
"""Keys of an issuer; one that rotates its keys publishes two or three."""
MAX_AUDIENCES: Final = 100

_FIELDS: Final = frozenset(
    (
        *("name", "signingAlgorithm", "audClaim", "audienceHandling", "audiences", "subClaim", "expiryLeewayS"),
        *("publicKeySource", "publicKey", "jwks", "sharedSecret"),
        *("jitProvisioning", "subMaps", "groupsClaim", "groupsMaps", "groupsMapsStopFirstMatch"),
        *("rolesClaim", "rolesMaps", "rolesMapsStopFirstMatch"),
    )
)
_WITHOUT_EFFECT: Final = frozenset(("displayName", "jwksUriRefreshIntervalS"))
"""Fields that change nothing as long as keys come from no URI."""
_NEEDED: Final = ("name", "signingAlgorithm", "audClaim", "audienceHandling", "audiences", "subClaim")


MAX_RULES: Final = 100
"""Rules of a claim."""
MAX_CLAIMED: Final = 1000
"""Values of a claim with roles or groups; more are refused, because each costs a match with each rule."""


class TokenRefused(DcpstreamError):
    """A token is not taken; the text says why, and holds nothing of the token."""


@dataclass(frozen=True, slots=True)
class ClaimedNames:
    """The roles, or groups, that a token claims, for those who know which of them exist.

    Attributes:
        candidates: for each value of the claim what the rules make of it, in their order.
        takes_first: whether of a value's candidates only the first counts that exists.
    """

    candidates: tuple[tuple[str, ...], ...]
    takes_first: bool

    def known(self, find: Callable[[str], Found | None]) -> list[Found]:
        """Those that exist, each once."""
        found: dict[Found, None] = {}
        for names in self.candidates:
            there = [one for one in map(find, names) if one is not None]
            found.update(dict.fromkeys(there[:1] if self.takes_first else there))
        return list(found)


@dataclass(frozen=True, slots=True)
class ClaimMap:
    """A claim, and the rules that make names of the node of its values.

    A rule is a pattern and a template. Each match of the pattern in a value is replaced by the template, in which a
    backslash and a digit is a group of the match, and `&` the match. Without rules a value stays as it is.

    Attributes:
        claim: path of the claim, parts separated by dots.
    """

    claim: str
    rules: tuple[tuple[re.Pattern[str], str], ...] = ()
    takes_first: bool = True

    def names(self, claims: Mapping[str, Any]) -> ClaimedNames:
        """Apply the rules to the claims of a token; a claim of another type counts as missing.

        Raises:
            TokenRefused: it has too many values.
        """
        values = _at(claims, self.claim)
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            values = []
        if len(values) > MAX_CLAIMED:
            raise TokenRefused(f"the claim {self.claim} has more than {MAX_CLAIMED} values")
        return ClaimedNames(tuple(self.made_of(value) for value in values), self.takes_first)

    def made_of(self, value: str) -> tuple[str, ...]:
        """Apply the rules to one value."""
        if not self.rules:
            return (value,)
        return tuple(
            pattern.sub(lambda match, text=template: _filled(text, match), value)  # type: ignore[misc]
            for pattern, template in self.rules
            if (found := pattern.search(value)) is not None and found[0]
        )


def _filled(template: str, match: re.Match[str]) -> str:
    return _REFERENCE.sub(lambda found: _part(found[0], match), template)


def _part(reference: str, match: re.Match[str]) -> str:
    if reference == "&":
        return match[0]
    return (match[int(reference[1])] or "") if reference[1].isdecimal() else reference[1]


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a token that was taken.

    Attributes:
        username: of an external user.
        expires_at: when the token ends, with the leeway, in seconds since 1970.
        roles, groups: those that the claims give, as texts in the order of preference; None without `jitProvisioning`.
            Each inner tuple has what the rules make of one value of the claim, of which the first that exists counts,
            or with `…MapsStopFirstMatch` false each.
    """

    username: str
    expires_at: float
    roles: ClaimedNames | None = None
    groups: ClaimedNames | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Issuer:
    """An issuer.

    Attributes:
        algorithm: the only one that its tokens may name.
        keys: `kid` → key; None for a key without a name.
        audience_claim, subject_claim: paths of the claims, parts separated by dots.
        handling: whether a token needs any or all of the audiences.
        subjects: the rules for the user's name.
        roles, groups: those of the claims; None without `jitProvisioning`.
    """

    algorithm: str
    keys: Mapping[str | None, Any]
    audience_claim: str
    subject_claim: str
    audiences: frozenset[str]
    handling: Literal["any", "all"]
    leeway_s: int
    subjects: ClaimMap
    roles: ClaimMap | None = None
    groups: ClaimMap | None = None

    def key_of(self, kid: object) -> Any:
        """The key that a token names; the only key, if it names none.

        Raises:
            TokenRefused: there is no such key.
        """
        if len(self.keys) == 1 and (kid is None or None in self.keys):
            return next(iter(self.keys.values()))
        key = self.keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise TokenRefused("no key of the issuer has the name in the token's header")
        return key

    def check_claims(self, claims: Mapping[str, Any], now_s: float) -> Holder:
        """Check the claims of a token whose signature is right.

        Raises:
            TokenRefused: a claim is missing, or is wrong.
        """
        subject, expiry, begin = _at(claims, self.subject_claim), claims.get("exp"), claims.get("nbf")
        audiences = _at(claims, self.audience_claim)
        if isinstance(audiences, str):
            audiences = [audiences]
        if not isinstance(subject, str) or not subject:
            raise TokenRefused("the claim of the user's name is missing or no text")
        if not _is_time(expiry):
            raise TokenRefused("the claim exp is missing or no time")
        if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
            raise TokenRefused("the claim of the audience is missing or no list of texts")
        if now_s > expiry + self.leeway_s:
            raise TokenRefused("the token has expired")
        if begin is not None and (not _is_time(begin) or now_s < begin - self.leeway_s):
            raise TokenRefused("the token is not valid yet")
        found = self.audiences & set(audiences)
        if not found or (self.handling == "all" and found != self.audiences):
            raise TokenRefused("the token is for another audience")
        names = self.subjects.made_of(subject)
        if not names or not names[0]:
            raise TokenRefused("no rule makes a user's name of its subject")
        roles, groups = (None if each is None else each.names(claims) for each in (self.roles, self.groups))
        return Holder(names[0], expiry + self.leeway_s, roles, groups)


class Issuers:
    """The issuers that a node trusts, by name.

    Args:
        settings: `{"enabled": true, "issuers": [{"name": …, "signingAlgorithm": "RS256", "audClaim": "aud",
            "audienceHandling": "any", "audiences": […], "subClaim": "sub", "publicKeySource": "pem" or "jwks",
            "publicKey" or "jwks": …}]}`; "sharedSecret" with HS256, HS384 and HS512.

    Raises:
        ConfigError: the settings are not that. Never quotes a key.
    """

    def __init__(self, settings: Any) -> None:
        if not isinstance(settings, Mapping) or not isinstance(settings.get("issuers", []), list):
            raise ConfigError("jwt", type(settings).__name__, 'a JSON object {"enabled": true, "issuers": […]}')
        if unknown := settings.keys() - {"enabled", "issuers"} - _WITHOUT_EFFECT:
            raise ConfigError("jwt", ", ".join(sorted(unknown)), "enabled and issuers")
        entries = settings.get("issuers", []) if settings.get("enabled", True) else []
        if len(entries) > MAX_ISSUERS:
            raise ConfigError("jwt", f"{len(entries)} issuers", f"at most {MAX_ISSUERS}")
        self._issuers: dict[str, Issuer] = {}
        for entry in entries:
            name, issuer = _read_issuer(entry)
            if name in self._issuers:
                raise ConfigError("jwt", name, "each name of an issuer once")
            self._issuers[name] = issuer

    def __bool__(self) -> bool:
        """Whether there is an issuer."""
        return bool(self._issuers)

    def check(self, token: str, now_s: float) -> Holder:
        """The holder of a token.

        Args:
            now_s: seconds since 1970.

        Raises:
            TokenRefused: it is not taken.
        """
        try:
            unverified = jwt.PyJWS().decode_complete(token, options={"verify_signature": False})
            header, claims = unverified["header"], json.loads(unverified["payload"])
            name = claims.get("iss")
        except (jwt.PyJWTError, ValueError, AttributeError, RecursionError):
            raise TokenRefused("it is not a token with claims") from None
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise TokenRefused("its issuer is unknown")
        if header.get("alg") != issuer.algorithm:
            raise TokenRefused("its algorithm is not that of its issuer")
        try:
            jwt.PyJWS().decode_complete(token, issuer.key_of(header.get("kid")), algorithms=[issuer.algorithm])
        except (jwt.PyJWTError, ValueError):
            raise TokenRefused("its signature is wrong") from None
        return issuer.check_claims(claims, now_s)


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """The value of a claim at a path, None if there is none."""
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_time(value: Any) -> TypeGuard[int]:
    """Whether a claim is a time in whole seconds that a clock can reach."""
    return type(value) is int and abs(value) < 2**53


def _read_issuer(entry: Any) -> tuple[str, Issuer]:
    if not isinstance(entry, Mapping):
        raise ConfigError("jwt: issuers", type(entry).__name__, "a list of JSON objects")
    name = str(entry.get("name", ""))
    option = f"jwt: issuer {name}"
    missing = [field for field in _NEEDED if not entry.get(field)]
    if missing:
        raise ConfigError(option, f"no {', '.join(missing)}", f"an issuer with {', '.join(_NEEDED)}")
    if unknown := {field for field in entry.keys() - _FIELDS - _WITHOUT_EFFECT if entry[field]}:
        # To ignore a check that the server makes would be worse than an error.
        given = ", ".join(sorted(unknown))
        message = f"{option}: the node does not have {given}. It has {', '.join(sorted(_FIELDS))}"
        raise ConfigError(option, given, "fields that the node has", message=message)
    algorithm, audiences, handling = entry["signingAlgorithm"], entry["audiences"], entry["audienceHandling"]
    if algorithm not in (*SECRET_BYTES, *PUBLIC):
        raise ConfigError(f"{option}: signingAlgorithm", algorithm, f"one of {', '.join((*SECRET_BYTES, *PUBLIC))}")
    is_list = isinstance(audiences, list) and all(isinstance(one, str) for one in audiences)
    if not is_list or len(audiences) > MAX_AUDIENCES:
        raise ConfigError(f"{option}: audiences", type(audiences).__name__, f"a list of at most {MAX_AUDIENCES} texts")
    if handling not in ("any", "all"):
        raise ConfigError(f"{option}: audienceHandling", handling, "any or all")
    leeway = entry.get("expiryLeewayS", EXPIRY_LEEWAY_S)
    if type(leeway) is not int or not 0 <= leeway <= MAX_EXPIRY_LEEWAY_S:
        raise ConfigError(f"{option}: expiryLeewayS", leeway, f"seconds from 0 to {MAX_EXPIRY_LEEWAY_S}")
    keys = _read_secret(option, entry, algorithm) if algorithm in SECRET_BYTES else _read_keys(option, entry, algorithm)
    paths = str(entry["audClaim"]), str(entry["subClaim"])
    subjects = _read_map(option, entry, "sub", paths[1])
    is_just_in_time = entry.get("jitProvisioning", False)
    if type(is_just_in_time) is not bool:
        raise ConfigError(f"{option}: jitProvisioning", is_just_in_time, "true or false")
    maps = [_read_map(option, entry, what, str(entry.get(f"{what}Claim") or what)) for what in ("roles", "groups")]
    claimed = maps if is_just_in_time else ()
    return name, Issuer(algorithm, keys, *paths, frozenset(audiences), handling, leeway, subjects, *claimed)


def _read_map(option: str, entry: Mapping[str, Any], what: str, claim: str) -> ClaimMap:
    """The rules for roles, groups or the subject."""
    texts, takes_first = entry.get(f"{what}Maps") or [], entry.get(f"{what}MapsStopFirstMatch", True)
    if type(takes_first) is not bool:
        raise ConfigError(f"{option}: {what}MapsStopFirstMatch", takes_first, "true or false")
    if not isinstance(texts, list) or len(texts) > MAX_RULES:
        raise ConfigError(f"{option}: {what}Maps", type(texts).__name__, f"a list of at most {MAX_RULES} rules")
    rules = []
    for text in texts:
        pattern, space, template = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
        try:
            compiled = re.compile(pattern)
        except re.error:
            space = ""
        numbers = [int(each[1]) for each in _REFERENCE.findall(template) if each[1:].isdecimal()]
        if not space or (numbers and max(numbers) > compiled.groups):
            allowed = "a pattern, a space, and a template with groups of the pattern, such as ^(.*)@example.com$ \\1"
            raise ConfigError(f"{option}: {what}Maps", text, allowed)
        rules.append((compiled, template))
    return ClaimMap(claim, tuple(rules), takes_first)


def _read_secret(option: str, entry: Mapping[str, Any], algorithm: str) -> dict[str | None, bytes]:
    secret = entry.get("sharedSecret")
    if not isinstance(secret, str) or len(secret.encode()) < SECRET_BYTES[algorithm]:
        allowed = f"a text of at least {SECRET_BYTES[algorithm]} bytes"
        raise ConfigError(f"{option}: sharedSecret", "another one", allowed)
    return {None: secret.encode()}


def _read_keys(option: str, entry: Mapping[str, Any], algorithm: str) -> dict[str | None, Any]:
    source = entry.get("publicKeySource")
    if source not in ("pem", "jwks"):
        raise ConfigError(f"{option}: publicKeySource", source, "pem or jwks")
    field = "publicKey" if source == "pem" else "jwks"
    try:
        keys = _keys_of_pem(entry[field], algorithm) if source == "pem" else _keys_of_jwks(entry[field], algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        keys = {}
    if not 0 < len(keys) <= MAX_KEYS:
        allowed = f"1 to {MAX_KEYS} public keys for {algorithm}, RSA keys of at least {MIN_RSA_BITS} bits"
        raise ConfigError(f"{option}: {field}", "no such key", allowed)
    return keys


def _keys_of_pem(pem: str, algorithm: str) -> dict[str | None, Any]:
    key = get_default_algorithms()[algorithm].prepare_key(pem)
    return {None: key} if _is_usable(key) else {}


def _keys_of_jwks(jwks: Any, algorithm: str) -> dict[str | None, Any]:
    """The keys for the algorithm; others in the set are for other algorithms, or not for signatures."""
    found: dict[str | None, Any] = {}
    for entry in jwks.get("keys", [jwks]):
        if entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
            continue
        with suppress(jwt.PyJWTError):
            # Prepared once more, which refuses a key of another curve.
            key = get_default_algorithms()[algorithm].prepare_key(jwt.PyJWK(dict(entry), algorithm).key)
            if _is_usable(key):
                found[entry.get("kid")] = key
    return found


def _is_usable(key: Any) -> bool:
    """Whether a key is public, and no RSA key that is too short."""
    return not hasattr(key, "sign") and (not isinstance(key, RSAPublicKey) or key.key_size >= MIN_RSA_BITS)
