"""SASL: published vectors, both ends together, and everything that must be refused."""

import base64
import hashlib
from functools import cache

import pytest

from dcpstream.dcp.sasl import (
    MECHANISMS,
    MIN_ITERATIONS,
    OAUTHBEARER,
    ClientLogin,
    Credentials,
    Outcome,
    ServerLogin,
    ServerStep,
    prepared_name,
    strongest_mechanism,
)
from dcpstream.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from tests.kit.cases import each_case
from tests.kit.rules import rule

SCRAM = [name for name in MECHANISMS if name != "PLAIN"]
NONCE = bytes(range(24))


def nobody_of(credentials):
    return lambda _: credentials


@cache
def credentials(password, salt):
    """Derived once: that takes milliseconds."""
    return Credentials(password, salt, MIN_ITERATIONS)


def server(**passwords):
    users = {name: credentials(password, b"salt-of-" + name.encode()) for name, password in passwords.items()}
    nobody = credentials("never", b"decoy-salt")
    return ServerLogin(users.get, lambda: b"server-nonce-16b", nobody_of(nobody))


def login(mechanism, username, password, node):
    client = ClientLogin(mechanism, username, password, NONCE)
    answer = node.start(mechanism.encode(), client.start())
    if answer.outcome is Outcome.CONTINUE:
        answer = node.step(mechanism.encode(), client.step(answer.data))
    if answer.outcome is Outcome.SUCCESS:
        client.finish(answer.data)
    return answer


# RFC 5802 section 5 and RFC 7677 section 3: user "user", password "pencil", 4096 rounds.
VECTORS = [
    (
        "SCRAM-SHA1",
        b"fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        "SCRAM-SHA256",
        b"rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]


@each_case(("mechanism", "nonce", "challenge", "proof", "signature"), VECTORS)
def test_client_gives_the_published_proof(mechanism, nonce, challenge, proof, signature):
    client = ClientLogin(
        mechanism, "user", "pencil", base64.b64decode(nonce + b"=" * (-len(nonce) % 4)).ljust(16, b"x")
    )
    client._nonce, client._first_bare = nonce, b"n=user,r=" + nonce
    assert client.start() == b"n,,n=user,r=" + nonce
    assert client.step(challenge) == proof
    client.finish(signature)


@each_case("mechanism", MECHANISMS)
def test_both_ends_agree(mechanism):
    answer = login(mechanism, "ann", "secret", server(ann="secret"))
    assert answer.outcome is Outcome.SUCCESS
    assert answer.username == "ann"


@each_case("mechanism", MECHANISMS)
@each_case(("username", "password"), [("ann", "wrong"), ("ann", ""), ("bob", "secret"), ("bob", "never")])
def test_wrong_user_or_password_is_refused_alike(mechanism, username, password):
    answer = login(mechanism, username, password, server(ann="secret"))
    assert (answer.outcome, answer.data, answer.username) == (Outcome.REFUSED, b"", None)


@each_case("mechanism", SCRAM)
def test_names_with_comma_and_equals_sign(mechanism):
    node = server(**{"a=b,c": "pä,ss=word"})
    assert login(mechanism, "a=b,c", "pä,ss=word", node).username == "a=b,c"


def test_plain_that_is_not_three_parts_is_malformed():
    assert server(a="b").start(b"PLAIN", b"garbage").outcome is Outcome.MALFORMED


def test_plain_takes_an_authorization_identity_and_ignores_what_follows_the_password():
    node = server(ann="secret")
    assert node.start(b"PLAIN", b"other\0ann\0secret").outcome is Outcome.SUCCESS
    assert node.start(b"PLAIN", b"\0ann\0secret\0more").outcome is Outcome.SUCCESS


@each_case("mechanism", [b"FOO", b"", b"SCRAM-MD5", b"\xff"])
def test_unknown_mechanism_is_refused(mechanism):
    assert server(a="b").start(mechanism, b"").outcome is Outcome.REFUSED


@each_case("data", [b"", b"n", b"n,,", b"x,,n=a,r=b", b"n,,n=a", b"n,,r=abc", b"n,,n=a=ZZ,r=b", b"p=tls,,n=a,r=b"])
def test_malformed_first_message(data):
    assert server(a="b").start(b"SCRAM-SHA1", data).outcome is Outcome.MALFORMED


@each_case("data", [b"", b"c=biws", b"c=biws,r=x,p=!!", b"c=biws,r=x,p=AAAA"])
def test_malformed_final_message(data):
    node = server(ann="secret")
    node.start(b"SCRAM-SHA1", b"n,,n=ann,r=abcdef")
    assert node.step(b"SCRAM-SHA1", data).outcome is Outcome.MALFORMED


def test_step_without_start_or_with_another_mechanism_is_malformed():
    node = server(ann="secret")
    assert node.step(b"SCRAM-SHA1", b"c=biws").outcome is Outcome.MALFORMED
    node.start(b"SCRAM-SHA1", b"n,,n=ann,r=abcdef")
    assert node.step(b"SCRAM-SHA256", b"c=biws").outcome is Outcome.MALFORMED


@each_case("mechanism", SCRAM)
def test_a_proof_is_good_once(mechanism):
    node, client = server(ann="secret"), ClientLogin(mechanism, "ann", "secret", NONCE)
    proof = client.step(node.start(mechanism, client.start()).data)
    assert node.step(mechanism, proof).outcome is Outcome.SUCCESS
    assert node.step(mechanism, proof).outcome is Outcome.MALFORMED


@each_case("change", [(b"r=", b"r=x"), (b"c=biws", b"c=eSws")])
def test_changed_nonce_or_binding_is_refused(change):
    node, client = server(ann="secret"), ClientLogin("SCRAM-SHA256", "ann", "secret", NONCE)
    proof = client.step(node.start("SCRAM-SHA256", client.start()).data)
    assert node.step("SCRAM-SHA256", proof.replace(*change)).outcome is Outcome.REFUSED


@rule("SEC-10")
@each_case(
    "challenge",
    [
        b"",
        b"r=other,s=QUJD,i=4096",
        b"r=NONCE,s=QUJD,i=4096",
        b"r=NONCEx,s=,i=1",
        b"r=NONCEx,s=QUJD,i=99999999",
        b"r=NONCEx,s=QUJD,i=" + b"1" * 5000,
    ],
)
def test_client_refuses_a_challenge_that_is_none(challenge):
    client = ClientLogin("SCRAM-SHA512", "ann", "secret", NONCE)
    with pytest.raises(RemoteProtocolError):
        client.step(challenge.replace(b"NONCE", base64.b64encode(NONCE)))


@rule("SEC-10")
@each_case(
    ("rounds", "is_taken"),
    [("0", False), ("1", False), ("3999", False), ("4000", True), ("4096", True), ("1000000", True)],
)
def test_client_refuses_a_challenge_of_few_rounds(rounds, is_taken):
    """Couchbase clusters before 7.6 ask for 4,000, fewer than RFC 5802 allows."""
    client = ClientLogin("SCRAM-SHA512", "ann", "secret", NONCE)
    challenge = b"r=" + base64.b64encode(NONCE) + b"more,s=QUJD,i=" + rounds.encode()
    if is_taken:
        assert client.step(challenge).startswith(b"c=biws,r=")
    else:
        with pytest.raises(RemoteProtocolError, match=f"asks for {rounds} rounds of hashing, fewer than 4000"):
            client.step(challenge)


def test_client_refuses_a_server_that_does_not_know_the_password():
    node, client = server(ann="secret"), ClientLogin("SCRAM-SHA512", "ann", "secret", NONCE)
    client.step(node.start("SCRAM-SHA512", client.start()).data)
    with pytest.raises(RemoteProtocolError, match="does not know the password"):
        client.finish(b"v=" + base64.b64encode(b"x" * 64))


def test_client_refuses_success_without_proof_and_a_second_challenge():
    client = ClientLogin("SCRAM-SHA1", "ann", "secret", NONCE)
    with pytest.raises(RemoteProtocolError, match="before proving itself"):
        client.finish(b"")
    challenge = server(ann="secret").start("SCRAM-SHA1", client.start()).data
    client.step(challenge)
    with pytest.raises(RemoteProtocolError, match="second time"):
        client.step(challenge)


def test_plain_has_no_second_step():
    with pytest.raises(LocalProtocolError):
        ClientLogin("PLAIN", "ann", "secret").step(b"r=1")


def test_client_options_are_checked():
    with pytest.raises(ConfigError, match="SCRAM-SHA512"):
        ClientLogin("FOO", "ann", "secret")
    with pytest.raises(ConfigError, match="16"):
        ClientLogin("SCRAM-SHA1", "ann", "secret", b"short")


def test_strongest_mechanism():
    assert strongest_mechanism(b"PLAIN SCRAM-SHA1 SCRAM-SHA256") == "SCRAM-SHA256"
    assert strongest_mechanism("PLAIN") == "PLAIN"
    with pytest.raises(ConfigError):
        strongest_mechanism("PLAIN", allow_plain=False)
    with pytest.raises(ConfigError):
        strongest_mechanism("OAUTHBEARER")


# ------------------------------------------------------------------------------------------------ what others could try


@each_case("mechanism", SCRAM)
def test_a_name_that_nobody_has_is_asked_for_a_proof_like_any_other(mechanism):
    users = {"ann": Credentials("secret", b"0123456789abcdef", MIN_ITERATIONS)}
    nobody = Credentials("never", b"decoy-salt-16byt", MIN_ITERATIONS)
    node = ServerLogin(users.get, lambda: b"n" * 18, lambda name: nobody.with_salt(name.encode().ljust(16, b".")))
    shapes = []
    for name in ("ann", "bob"):
        login = ClientLogin(mechanism, name, "wrong", NONCE)
        challenge = node.start(mechanism, login.start())
        refused = node.step(mechanism, login.step(challenge.data))
        shapes.append((challenge.outcome, len(challenge.data), challenge.data.count(b","), refused))
    assert shapes[0] == shapes[1]


def test_nobodys_credentials_fit_no_password():
    nobody = Credentials("never", b"decoy-salt-16byt", 8).with_salt(b"another")
    assert not nobody.matches(b"never")
    drawn = Credentials.of_nobody(b"secret", b"decoy-salt-16byt", 8)
    assert not any(drawn.matches(password) for password in (b"", b"secret"))
    assert all(
        [len(part) for part in (drawn.keys(name).stored_key, drawn.keys(name).server_key)]
        == [len(part) for part in (nobody.keys(name).stored_key, nobody.keys(name).server_key)]
        for name in ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")
    )
    assert nobody.keys("SCRAM-SHA1").salt == b"another"


@each_case(
    "data",
    [
        b"p=tls-unique,,n=ann,r=abcdefgh",
        b"p=tls-server-end-point,,n=ann,r=abcdefgh",
        b"n,,m=ext,n=ann,r=abcdefgh",
        b"n,,n=ann,r=" + b"x" * 257,
    ],
)
def test_channel_binding_extensions_and_endless_nonces_are_refused(data):
    assert server(ann="secret").start(b"SCRAM-SHA256", data).outcome is Outcome.MALFORMED


def test_a_mechanism_that_is_not_offered_is_refused_as_if_it_were_not_known():
    ann = Credentials("secret", b"salt", 8)
    node = ServerLogin(lambda _: ann, lambda: b"n" * 18, lambda _: ann, offered=("SCRAM-SHA512",))
    assert node.start(b"PLAIN", b"\0ann\0secret").outcome is Outcome.REFUSED
    assert node.start(b"SCRAM-SHA1", b"n,,n=ann,r=abcdefgh").outcome is Outcome.REFUSED
    assert node.start(b"SCRAM-SHA512", b"n,,n=ann,r=abcdefgh").outcome is Outcome.CONTINUE


def test_a_right_password_is_known_again_and_a_wrong_one_still_is_not(monkeypatch):
    credentials = Credentials("secret", b"salt", 8)
    rounds = []
    derive = hashlib.pbkdf2_hmac

    def counted(*given):
        rounds.append(1)
        return derive(*given)

    monkeypatch.setattr("hashlib.pbkdf2_hmac", counted)
    assert not credentials.matches(b"wrong")
    assert credentials.matches(b"secret")
    assert credentials.matches(b"secret")
    assert len(rounds) == 2, "the second time costs nothing"
    assert not credentials.matches(b"wrong")
    assert len(rounds) == 3, "a wrong one costs as much as ever"


def test_a_second_login_derives_nothing_and_another_password_does(monkeypatch):
    derived = []
    derive = hashlib.pbkdf2_hmac

    def counted(*arguments):
        derived.append(arguments[1])
        return derive(*arguments)

    salt = base64.b64encode(b"salt of this test").decode()
    monkeypatch.setattr("dcpstream.dcp.sasl.hashlib.pbkdf2_hmac", counted)

    def proof(mechanism, password):
        login = ClientLogin(mechanism, "user", password, bytes(24))
        return login.step(f"r={base64.b64encode(bytes(24)).decode()}more,s={salt},i=4000".encode())

    first = proof("SCRAM-SHA512", "one")
    assert proof("SCRAM-SHA512", "one") == first
    assert proof("SCRAM-SHA512", "two") != first
    assert proof("SCRAM-SHA256", "one") != first
    assert derived == [b"one", b"two", b"one"]


def test_credentials_are_kept_and_come_back():
    kept = Credentials("secret", b"0123456789abcdef", MIN_ITERATIONS).to_json()
    assert "secret" not in str(kept)
    again = Credentials.from_json(kept)
    assert again.matches(b"secret")
    assert not again.matches(b"other")
    assert login(
        "SCRAM-SHA512", "ann", "secret", ServerLogin(lambda _: again, lambda: b"n" * 18, lambda _: again)
    ).username


@each_case(
    "change",
    [
        {"salt": ""},
        {"salt": "!"},
        {"stored_key": "AAAA"},
        {"server_key": "AAAA"},
        {"iterations": 0},
        {"iterations": 10**9},
        {"iterations": "x"},
    ],
)
def test_kept_credentials_that_are_damaged_are_refused(change):
    kept = Credentials("secret", b"0123456789abcdef", 8).to_json()
    kept["SCRAM-SHA1"] |= change
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        Credentials.from_json(kept)


@each_case(
    ("name", "prepared"),
    [
        ("ann", "ann"),
        ("I\u00adX", "IX"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("Jos\u0065\u0301", "Jos\u00e9"),
        ("\u0007", None),
        ("\u0627\u0031", None),
        ("\u0627\u0628", "\u0627\u0628"),
        ("\u0221", None),
        ("\u00ad", None),
        ("a\x00b", None),
    ],
)
def test_names_are_prepared_as_rfc_4013_says(name, prepared):
    assert prepared_name(name) == prepared


def token_server():
    """Takes one token, and answers with the name that the client gave."""
    return ServerLogin(
        lambda _: None,
        lambda: b"",
        nobody_of(None),
        (OAUTHBEARER,),
        lambda name, token: ServerStep(Outcome.SUCCESS if token == "e30.e30.c2ln" else Outcome.REFUSED, username=name),
    )


def test_a_token_takes_one_message():
    client = ClientLogin(OAUTHBEARER, "", "e30.e30.c2ln")
    assert client.start() == b"n,,\x01auth=Bearer e30.e30.c2ln\x01\x01"
    assert token_server().start(OAUTHBEARER, client.start()) == ServerStep(Outcome.SUCCESS, username="")
    client.finish(b"")
    with pytest.raises(LocalProtocolError, match="OAUTHBEARER is done in one message"):
        client.step(b"")
    assert token_server().start(OAUTHBEARER, ClientLogin(OAUTHBEARER, "", "other").start()).outcome is Outcome.REFUSED


@each_case(
    ("data", "name"),
    [
        (b"n,a=ann,\x01host=h\x01port=1\x01auth=Bearer e30.e30.c2ln\x01\x01", "ann"),
        (b"n,a=a=2Cb=3D,\x01auth=bearer e30.e30.c2ln\x01\x01", "a,b="),
        (b"n,,\x01auth=BEARER e30.e30.c2ln", ""),
    ],
)
def test_forms_of_the_message_of_a_token(data, name):
    assert token_server().start(OAUTHBEARER, data) == ServerStep(Outcome.SUCCESS, username=name)


@each_case(
    "data",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"n\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"n,a=,\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"n,b=x,\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"n,a=a=00,\x01auth=Bearer e30.e30.c2ln\x01\x01",
        b"n,,\x01auth=Basic e30.e30.c2ln\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer e30 e30\x01\x01",
        b"n,,\x01auth=Bearer \xff\xfe\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
    ],
)
def test_other_messages_with_a_token_are_refused(data):
    assert token_server().start(OAUTHBEARER, data) == ServerStep(Outcome.MALFORMED)
