"""Tokens of configured issuers, at a time that the test sets; and everything that must be refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm

from dcpstream.errors import ConfigError
from dcpstream_node.engine.access.tokens import (
    MAX_CLAIMED,
    MAX_ISSUERS,
    MAX_RULES,
    ClaimedNames,
    Holder,
    Issuers,
    TokenRefused,
)
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.tokens import ISSUER, USER, issuer, private_key, public_jwk, public_pem, token

NOW = 1_700_000_000.0


def issuers(*entries: dict[str, Any]) -> Issuers:
    return Issuers({"enabled": True, "issuers": list(entries)})


def refusal(found: Issuers, text: str, now_s: float = NOW) -> str:
    with pytest.raises(TokenRefused) as caught:
        found.check(text, now_s)
    assert text == "" or text not in str(caught.value)
    return str(caught.value)


@rule("KV-LOGIN-09")
@each_case("algorithm", ["HS256", "RS256", "PS256", "ES256"])
def test_a_token_of_each_kind_of_key(algorithm: str) -> None:
    found = issuers(issuer(algorithm))
    assert found.check(token(NOW + 60, algorithm), NOW) == Holder(USER, NOW + 75)
    forged = token(NOW + 60, algorithm, key=private_key(algorithm, "other"))
    assert refusal(found, forged) == "its signature is wrong"


@rule("KV-LOGIN-09")
def test_the_key_is_chosen_by_its_name() -> None:
    jwks = {"keys": [public_jwk("ES256", "old"), public_jwk("ES256", "new"), public_jwk("RS256", "rsa")]}
    found = issuers(issuer(publicKeySource="jwks", jwks=jwks))
    for name in ("old", "new"):
        text = token(NOW, key=private_key("ES256", name), headers={"kid": name})
        assert found.check(text, NOW).username == USER
        assert refusal(found, token(NOW, key=private_key("ES256", name))) == (
            "no key of the issuer has the name in the token's header"
        )
    assert (
        refusal(found, token(NOW, key=private_key("ES256", "old"), headers={"kid": "new"})) == "its signature is wrong"
    )
    assert "no key" in refusal(found, token(NOW, key=private_key("ES256", "old"), headers={"kid": "rsa"}))


@rule("KV-LOGIN-09")
def test_times_are_those_of_the_nodes_clock_with_the_leeway() -> None:
    found = issuers(issuer(expiryLeewayS=10))
    text = token(NOW, nbf=int(NOW) - 100)
    for now_s in (NOW - 110, NOW, NOW + 10):
        assert found.check(text, now_s).expires_at == NOW + 10
    assert refusal(found, text, NOW - 111) == "the token is not valid yet"
    assert refusal(found, text, NOW + 11) == "the token has expired"


@rule("KV-LOGIN-09")
@each_case(
    ("handling", "audience", "is_taken"),
    [
        ("any", "b", True),
        ("any", ["x", "a"], True),
        ("any", ["x"], False),
        ("all", ["b", "a", "x"], True),
        ("all", ["a"], False),
        ("any", [], False),
    ],
)
def test_audiences(handling: str, audience: str | list[str], is_taken: bool) -> None:
    found = issuers(issuer(audiences=["a", "b"], audienceHandling=handling))
    text = token(NOW, aud=audience)
    if is_taken:
        assert found.check(text, NOW).username == USER
    else:
        assert refusal(found, text) == "the token is for another audience"


@rule("KV-LOGIN-09")
def test_claims_at_paths() -> None:
    found = issuers(issuer(subClaim="user.login", audClaim="meant_for"))
    text = token(NOW, aud=None, sub=None, user={"login": "bob"}, meant_for="couchbase")
    assert found.check(text, NOW).username == "bob"
    assert "user's name" in refusal(found, token(NOW, user="bob", meant_for="couchbase"))


@rule("KV-LOGIN-09")
def test_several_issuers() -> None:
    found = issuers(issuer(), issuer("HS256", name="other"))
    assert found.check(token(NOW, "HS256", iss="other"), NOW).username == USER
    assert refusal(found, token(NOW, "HS256")) == "its algorithm is not that of its issuer"
    assert refusal(found, token(NOW, iss="third")) == "its issuer is unknown"


def part(data: Any) -> str:
    return (
        base64.urlsafe_b64encode(data if isinstance(data, bytes) else json.dumps(data).encode()).rstrip(b"=").decode()
    )


CLAIMS = {"iss": ISSUER, "aud": "couchbase", "sub": USER, "exp": int(NOW)}
ALGORITHM = {"alg": "ES256", "typ": "JWT"}
SIGNATURE = part(bytes(64))
HOSTILE = {
    "nothing": "",
    "no parts": "eyJ",
    "empty parts": "..",
    "not base64": "!.!.!",
    "not JSON": f"{part(b'x')}.{part(b'y')}.{SIGNATURE}",
    "a list": f"{part([])}.{part([])}.{SIGNATURE}",
    "claims that are a list": f"{part(ALGORITHM)}.{part([1])}.{SIGNATURE}",
    "not UTF-8": f"{part(ALGORITHM)}.{part(bytes([0xFF, 0xFE]))}.{SIGNATURE}",
    "not ASCII": "schlüssel.schlüssel.schlüssel",
    "deep": f"{part(ALGORITHM)}.{part(b'[' * 5000)}.{SIGNATURE}",
    "huge": f"{part(ALGORITHM)}.{part(CLAIMS | {'x': 'y' * 1_000_000})}.{SIGNATURE}",
    "a huge number": f"{part(ALGORITHM)}.{part(b'{%b}' % (b'9' * 5000))}.{SIGNATURE}",
    "no algorithm": f"{part({})}.{part(CLAIMS)}.{SIGNATURE}",
    "algorithm none": f"{part({'alg': 'none'})}.{part(CLAIMS)}.",
    "algorithm None": f"{part({'alg': None})}.{part(CLAIMS)}.",
    "algorithm NONE with a signature": f"{part({'alg': 'NONE'})}.{part(CLAIMS)}.{SIGNATURE}",
    "no signature": f"{part(ALGORITHM)}.{part(CLAIMS)}.",
    "a signature of zeros": f"{part(ALGORITHM)}.{part(CLAIMS)}.{SIGNATURE}",
    "a short signature": f"{part(ALGORITHM)}.{part(CLAIMS)}.{part(b'1')}",
    "a detached payload": f"{part(ALGORITHM | {'b64': False, 'crit': ['b64']})}..{SIGNATURE}",
    "a critical extension": f"{part(ALGORITHM | {'crit': ['x'], 'x': 1})}.{part(CLAIMS)}.{SIGNATURE}",
    "a key of its own": f"{part(ALGORITHM | {'jwk': public_jwk('ES256', 'own')})}.{part(CLAIMS)}.{SIGNATURE}",
    "an issuer that is no text": f"{part(ALGORITHM)}.{part(CLAIMS | {'iss': [ISSUER]})}.{SIGNATURE}",
    "a name of a key that is no text": f"{part(ALGORITHM | {'kid': {}})}.{part(CLAIMS)}.{SIGNATURE}",
}


@rule("KV-LOGIN-09")
@each_case("name", HOSTILE)
def test_hostile_tokens(name: str) -> None:
    refusal(issuers(issuer()), HOSTILE[name])


@rule("KV-LOGIN-09")
def test_a_public_key_is_no_shared_secret() -> None:
    """The oldest attack: HS256 with the issuer's public key as the secret."""
    claims = {"iss": ISSUER, "aud": "couchbase", "sub": USER, "exp": int(NOW)}
    signing = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}"
    algorithm = jwt.PyJWS().get_algorithm_by_name("HS256")
    text = f"{signing}.{part(algorithm.sign(signing.encode(), public_pem('RS256').encode()))}"
    assert refusal(issuers(issuer("RS256")), text) == "its algorithm is not that of its issuer"


@rule("KV-LOGIN-09")
@each_case(
    ("claims", "words"),
    [
        ({"exp": None}, "exp is missing"),
        ({"exp": "soon"}, "exp is missing"),
        ({"exp": True}, "exp is missing"),
        ({"exp": 10**30}, "exp is missing"),
        ({"nbf": int(NOW) + 16}, "not valid yet"),
        ({"nbf": []}, "not valid yet"),
        ({"sub": None}, "user's name"),
        ({"sub": ""}, "user's name"),
        ({"aud": None}, "audience is missing"),
        ({"aud": [1]}, "audience is missing"),
        ({"iss": None}, "issuer is unknown"),
    ],
)
def test_claims_that_are_missing_or_wrong(claims: dict[str, Any], words: str) -> None:
    """Signed by the right key all the same."""
    every = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    text = jwt.PyJWS().encode(json.dumps(every).encode(), private_key("ES256"), "ES256")
    assert words in refusal(issuers(issuer()), text)


def pem_of(key: Any) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


P384 = ec.generate_private_key(ec.SECP384R1())
PRIVATE = private_key("RS256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def rules_of(name: str, rule: object) -> dict[str, Any]:
    return {name: [rule]}


@rule("KV-LOGIN-09")
@each_case(
    ("settings", "words"),
    [
        ([], "JSON object"),
        ({"issuers": {}}, "JSON object"),
        ({"issuer": []}, "enabled and issuers"),
        ({"issuers": ["x"]}, "JSON objects"),
        ({"issuers": [issuer()] * 2}, "once"),
        ({"issuers": [issuer(name=str(number)) for number in range(MAX_ISSUERS + 1)]}, f"at most {MAX_ISSUERS}"),
        ({"issuers": [issuer(audiences=[])]}, "no audiences"),
        ({"issuers": [issuer(audiences="couchbase")]}, "a list of at most"),
        ({"issuers": [issuer(audienceHandling="some")]}, "any or all"),
        ({"issuers": [issuer(expiryLeewayS=301)]}, "0 to 300"),
        ({"issuers": [issuer(signingAlgorithm="none")]}, "one of HS256"),
        ({"issuers": [issuer(jitProvisioning="yes")]}, "true or false"),
        ({"issuers": [issuer(rolesMapsStopFirstMatch=1)]}, "true or false"),
        ({"issuers": [issuer(rolesMaps="(.*) x")]}, "a list of at most"),
        ({"issuers": [issuer(rolesMaps=["(.*) x"] * (MAX_RULES + 1))]}, f"at most {MAX_RULES}"),
        *(
            ({"issuers": [issuer(**rules_of(name, rule))]}, "a pattern, a space")
            for name in ("rolesMaps", "groupsMaps", "subMaps")
            for rule in ("", "single", "[ x", "(.*", "(.*) \\2", 5)
        ),
        ({"issuers": [issuer(customClaims=[{"name": "x"}])]}, "the node does not have customClaims"),
        ({"issuers": [issuer(publicKeySource="jwks_uri", jwksUri="https://x")]}, "does not have jwksUri"),
        ({"issuers": [issuer(publicKeySource="file")]}, "pem or jwks"),
        ({"issuers": [issuer("HS256", sharedSecret="too short")]}, "at least 32 bytes"),
        ({"issuers": [issuer(publicKey="-----BEGIN")]}, "public keys for ES256"),
        ({"issuers": [issuer(publicKey=public_pem("RS256"))]}, "public keys for ES256"),
        ({"issuers": [issuer(publicKey=pem_of(P384.public_key()))]}, "public keys for ES256"),
        ({"issuers": [issuer("RS256", publicKey=PRIVATE)]}, "public keys for RS256"),
        ({"issuers": [issuer("RS256", publicKey=pem_of(rsa.generate_private_key(65537, 1024).public_key()))]}, "2048"),
        ({"issuers": [issuer(publicKeySource="jwks")]}, "public keys for ES256"),
        ({"issuers": [issuer(publicKeySource="jwks", jwks={"keys": "x"})]}, "public keys for ES256"),
        ({"issuers": [issuer(publicKeySource="jwks", jwks={"keys": [{"kty": "oct", "k": "c2Vj"}]})]}, "for ES256"),
        (
            {"issuers": [issuer(publicKeySource="jwks", jwks=ECAlgorithm.to_jwk(P384.public_key(), as_dict=True))]},
            "public keys for ES256",
        ),
    ],
)
def test_settings_that_cannot_be(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Issuers(settings)
    assert "too short" not in str(caught.value)
    assert "BEGIN" not in str(caught.value)


def test_settings_as_the_server_shows_them() -> None:
    shown = issuer(jitProvisioning=False, groupsMapsStopFirstMatch=True, rolesMapsStopFirstMatch=True, expiryLeewayS=15)
    assert Issuers({"enabled": True, "issuers": [shown], "jwksUriRefreshIntervalS": 3600})
    assert not Issuers({"enabled": False, "issuers": [shown]})


def holder(claims: dict[str, Any], **fields: Any) -> Holder:
    return issuers(issuer(**fields)).check(token(NOW + 60, **claims), NOW)


def known(names: ClaimedNames | None, *there: str) -> list[str]:
    assert names is not None
    return names.known(lambda name: name if name in there else None)


def test_without_provisioning_claims_give_nothing() -> None:
    found = holder({"roles": ["admin"], "groups": "g"}, rolesClaim="roles")
    assert (found.roles, found.groups) == (None, None)


@each_case("claim", ["admin", ["admin"], ["admin", "nothing", "admin"]])
def test_without_rules_a_claim_counts_as_it_is(claim: object) -> None:
    found = holder({"roles": claim, "deep": {"groups": claim}}, jitProvisioning=True, groupsClaim="deep.groups")
    assert known(found.roles, "admin", "x") == ["admin"]
    assert known(found.groups, "admin") == ["admin"]


@each_case("claim", [None, 5, ["admin", 5], {"admin": 1}])
def test_a_claim_of_another_type_counts_as_missing(claim: object) -> None:
    assert known(holder({"roles": claim}, jitProvisioning=True).roles, "admin") == []


def test_rules_make_names_of_values() -> None:
    rules = ["^reader:(.*)$ data_reader[\\1]", "^(.*):(.*)$ data_\\1[\\2]", "^raw$ &-&"]
    for takes_first, expected in ((True, ["data_reader[b]"]), (False, ["data_reader[b]", "data_writer[b]"])):
        claims = {"roles": ["reader:b", "none of these", "raw"]}
        rules_here = [*rules, "^reader:(.*)$ data_writer[\\1]"]
        found = holder(claims, jitProvisioning=True, rolesMaps=rules_here, rolesMapsStopFirstMatch=takes_first)
        assert known(found.roles, "data_reader[b]", "data_writer[b]") == expected
        assert known(found.roles, "raw-raw") == ["raw-raw"]


def test_a_rule_whose_name_means_nothing_gives_way_to_the_next() -> None:
    found = holder({"roles": "b"}, jitProvisioning=True, rolesMaps=["(.*) nothing", "^(.+)$ data_reader[\\1]"])
    assert known(found.roles, "data_reader[b]") == ["data_reader[b]"]


def test_a_backslash_and_a_raised_digit_stand_for_the_digit() -> None:
    found = holder({"roles": "b"}, jitProvisioning=True, rolesMaps=["^(.+)$ \\1\\\N{SUPERSCRIPT TWO}"])
    assert known(found.roles, "b\N{SUPERSCRIPT TWO}") == ["b\N{SUPERSCRIPT TWO}"]


@rule("KV-LOGIN-09")
def test_rules_for_the_subject() -> None:
    rules = ["^(.*)@example\\.com$ cb-\\1", "^svc$ service"]
    assert holder({"sub": "ann@example.com"}, subMaps=rules).username == "cb-ann"
    assert holder({"sub": "svc"}, subMaps=rules).username == "service"
    assert "no rule" in refusal(issuers(issuer(subMaps=rules)), token(NOW + 60, sub="ann@other.com"))
    cut = [r"^svc-(.*)$ \1"]
    assert "no rule" in refusal(issuers(issuer(subMaps=cut)), token(NOW + 60, sub="svc-"))


def test_too_many_values_are_refused() -> None:
    found = issuers(issuer(jitProvisioning=True))
    assert "more than" in refusal(found, token(NOW + 60, roles=["x"] * (MAX_CLAIMED + 1)))
