"""SASL of both ends: a hostile server or client is refused, and none gets in without the password.

Input: the mechanism and which end is tested, and the messages of the other with line feeds between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.dcp.sasl import MECHANISMS, PLAIN, ClientLogin, Credentials, Outcome, ServerLogin
from dcpstream.errors import ProtocolError

MAX_BYTES = 6000
NONCE = bytes(range(24))
_KNOWN = Credentials("secret", b"salt" * 4, 10)
_NOBODY = Credentials("?", b"none" * 4, 10)


def server() -> ServerLogin:
    return ServerLogin(lambda name: _KNOWN if name == "admin" else None, lambda: NONCE, lambda _: _NOBODY)


def seeds() -> Iterator[bytes]:
    for number, mechanism in enumerate(MECHANISMS):
        client, its_server = ClientLogin(mechanism, "admin", "secret", NONCE), server()
        first = client.start()
        challenge = its_server.start(mechanism, first)
        sent, got = [first], [challenge.data]
        if challenge.outcome is Outcome.CONTINUE:
            sent.append(client.step(challenge.data))
            got.append(its_server.step(mechanism, sent[-1]).data)
        yield bytes((number,)) + b"\n".join(sent)
        yield bytes((number | 0x80,)) + b"\n".join(got)
    yield b"\x80r=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXx,s=c2FsdA==,i=" + b"1" * 5000 + b"\nv="


def check(data: bytes) -> None:
    if not data:
        return
    mechanism = MECHANISMS[data[0] % len(MECHANISMS)]
    messages = data[1:].split(b"\n")[:4]
    if data[0] & 0x80:
        as_client(mechanism, messages)
    else:
        as_server(mechanism, messages)


def as_client(mechanism: str, messages: list[bytes]) -> None:
    client = ClientLogin(mechanism, "admin", "secret", NONCE)
    client.start()
    try:
        for message in messages[:-1]:
            client.step(message)
        client.finish(messages[-1])
    except ProtocolError:
        return


def as_server(mechanism: str, messages: list[bytes]) -> None:
    login = server()
    step = login.start(mechanism, messages[0])
    for message in messages[1:]:
        if step.outcome is not Outcome.CONTINUE:
            break
        step = login.step(mechanism, message)
    if step.outcome is Outcome.SUCCESS:
        # The proof of a SCRAM login with this nonce is always the same one.
        assert b"secret" in messages[0] if mechanism == PLAIN else b"p=" in messages[1]
