"""Errors say what happened and what to do."""

from __future__ import annotations

import inspect

import pytest

from dcpstream import errors


def test_the_tree_in_the_docstring_names_every_class() -> None:
    for name, kind in vars(errors).items():
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            continue
        assert issubclass(kind, errors.DcpstreamError)
        if not issubclass(kind, errors.StatusError) or kind is errors.StatusError:
            assert name in (inspect.getdoc(errors) or ""), name


def test_a_config_error_names_option_value_and_what_is_allowed() -> None:
    error = errors.ConfigError("vbuckets", 0, "1 to 1024")
    assert isinstance(error, ValueError)
    assert str(error) == "vbuckets cannot be 0. Allowed: 1 to 1024"


def test_a_missing_option_and_an_object_are_named_in_words() -> None:
    assert str(errors.ConfigError("schema", None, "a schema")) == "schema is missing. Needed: a schema"
    assert str(errors.ConfigError("tls", object(), "True")) == "tls cannot be this object. Allowed: True"
    told = errors.ConfigError("port", 80, "a free port", message="port 80 is already in use")
    assert (str(told), told.value, told.allowed) == ("port 80 is already in use", 80, "a free port")


def test_a_config_error_under_another_name_keeps_its_sentence() -> None:
    told = errors.ConfigError("port", 80, "a free port", message="port 80 is already in use").under("--port")
    assert (str(told), told.option) == ("port 80 is already in use", "--port")
    assert str(errors.ConfigError("port", 0, "1 to 9").under("--port")) == "--port cannot be 0. Allowed: 1 to 9"


def test_a_corrupt_log_says_where() -> None:
    error = errors.CorruptLog("/data/1.seg", 4096, "checksum 1", "checksum 2", "Restore the file.")
    assert str(error) == "/data/1.seg: damaged at byte 4096: expected checksum 1, found checksum 2. Restore the file."


def test_a_wire_error_says_where_and_what_to_do() -> None:
    error = errors.FrameError("no frame begins", offset=44, header=b"\xde\xad", hint="Cut it there")
    assert str(error) == "no frame begins at byte 44 (header dead). Cut it there"
    assert (error.reason, error.offset, error.header) == ("no frame begins", 44, b"\xde\xad")
    assert str(errors.FieldError("too long")) == "too long"


def test_a_protocol_error_names_state_and_event() -> None:
    error = errors.RemoteProtocolError("not legal now", state="DEAD", event="DCP_MUTATION")
    assert str(error) == "not legal now (state DEAD, event DCP_MUTATION)"


def test_a_rollback_says_what_to_do() -> None:
    assert "on_rollback" in str(errors.RollbackRequired(7, 10))
    with pytest.raises(errors.DcpstreamError):
        raise errors.RollbackRequired(7, 10)
