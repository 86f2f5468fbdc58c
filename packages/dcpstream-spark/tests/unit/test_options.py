from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from dcpstream.arrow import CHANGE_SCHEMA, RowFilter
from dcpstream.client.settings.secrets import SecretFile, SecretFunction
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.errors import ConfigError
from dcpstream_spark.options import OPTIONS, SourceOptions
from dcpstream_spark.where import parse_where
from tests.kit.cases import each_case

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "secret", "bucket": "b"}


def test_defaults() -> None:
    options = SourceOptions.parse(NEEDED)
    assert options.meta_columns == tuple(CHANGE_SCHEMA.names)
    assert options.collections is None
    assert options.starting_offsets is None
    assert options.ending_offsets.kind == "latest"
    assert (options.on_rollback, options.rewind_to) == ("fail", "recorded")
    assert options.max_bytes_per_trigger == 256 * 2**20
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_s, options.min_partitions) == (0, 900, 1)
    assert options.max_offsets_per_trigger == 1_000_000


@each_case("option", [{"trustCertificate": "/authority.pem"}, {"tlsVerify": "none"}])
def test_tls_without_tls_is_reported_in_a_sentence(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"Begin it with couchbases://") as raised:
        SourceOptions.parse(NEEDED | option)
    assert "TlsOptions" not in str(raised.value)


def test_names_and_words_are_taken_in_any_case() -> None:
    lower = {name.lower(): value for name, value in NEEDED.items()}
    options = SourceOptions.parse(
        {**lower, "ONROLLBACK": "rewindandmark", "valueformat": "String", "numpartitions": "3"}
    )
    assert options.on_rollback == "rewindAndMark"
    assert options.value_format == "string"
    assert options.num_partitions == 3


def test_lists() -> None:
    options = SourceOptions.parse({**NEEDED, "collections": "s.b, a", "columns": "SEQNO,key"})
    assert options.collections == ("a", "s.b")
    assert options.columns == ("seqno", "key")


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(SourceOptions.parse(NEEDED))
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse({**NEEDED, "passwort": "secret"})
    assert "secret" not in str(raised.value)
    assert "password" in str(raised.value)


def test_the_password_comes_from_one_of_several_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = {name: value for name, value in NEEDED.items() if name != "password"}
    file = tmp_path / "word"
    file.write_text("from a file")
    monkeypatch.setenv("WORD", "from the environment")
    assert SourceOptions.parse({**others, "passwordVariable": "WORD"}).password == "from the environment"
    by_file = SourceOptions.parse({**others, "passwordFile": str(file)})
    assert by_file.password == SecretFile(str(file), "passwordFile")
    by_function = SourceOptions.parse({**others, "passwordFunction": "vault:word"})
    assert by_function.password == SecretFunction("vault:word", "passwordFunction")
    assert pickle.loads(pickle.dumps(by_function)) == by_function
    for given, words in (
        ({**NEEDED, "passwordFile": str(file)}, "password and passwordFile are given. Leave only one"),
        ({**others, "passwordFile": "/nowhere"}, "passwordFile: /nowhere cannot be read: No such file"),
        ({**others, "passwordVariable": "NOWHERE"}, "no variable NOWHERE"),
        ({**others, "passwordFunction": "vault"}, "module:function"),
    ):
        with pytest.raises(ConfigError, match=words) as raised:
            SourceOptions.parse(given)
        assert "secret" not in str(raised.value)


def test_a_token_stands_for_user_and_password(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("eyJ.eyJ.c2ln")
    given = {"connectionString": "couchbases://db", "bucket": "b", "tokenFile": str(file)}
    options = SourceOptions.parse(given)
    assert options.client_options.token == SecretFile(str(file), "tokenFile")
    assert "eyJ" not in repr(SourceOptions.parse({**SECURED_WITHOUT_USER, "token": "eyJ.eyJ.c2ln"}))
    for wrong, words in (
        ({**given, "password": "secret"}, "a token is given together with a user"),
        ({**given, "certificate": "own.pem"}, "a client certificate is given together with a token"),
        ({**given, "connectionString": "couchbase://db"}, "a token is sent as it is, so it needs TLS"),
        ({**SECURED_WITHOUT_USER, "token": "my secret"}, "is not a token"),
    ):
        with pytest.raises(ConfigError, match=words) as raised:
            SourceOptions.parse(wrong)
        assert "secret" not in str(raised.value)


@each_case("missing", sorted(NEEDED))
def test_needed_options_are_asked_for_by_name(missing: str) -> None:
    given = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(ConfigError, match=missing) as raised:
        SourceOptions.parse(given)
    assert raised.value.option == missing


@each_case(
    ("option", "value", "allowed"),
    [
        ("connectionString", "http://x", ""),
        ("bucket", " ", "not empty"),
        ("startingOffsets", "newest", "earliest or latest"),
        ("startingOffsets", "{}", "earliest or latest"),
        ("startingOffsets", '{"x": "1"}', "not a vbucket"),
        ("startingOffsets", '{"' + "1" * 5000 + '": "1"}', "not a vbucket"),
        ("startingOffsets", "[" * 100_000, "earliest or latest"),
        ("endingOffsets", "earliest", "latest"),
        ("maxOffsetsPerTrigger", "0", "from 1"),
        ("maxOffsetsPerTrigger", "many", "whole number"),
        ("numPartitions", "-1", "from 1 to 1024"),
        ("valueFormat", "json", "binary, string"),
        ("columns", "key,nothing", "key, value"),
        ("columns", "key,key", "different"),
        ("collections", "a..b", "scope.collection"),
        ("onRollback", "ignore", "fail, rewindAndMark"),
        ("rewindTo", "1", "recorded, zero"),
        ("connectTimeout", "0", "seconds"),
        ("flowControlBufferBytes", "1", "65536"),
    ],
)
def test_a_wrong_value_names_option_value_and_what_is_allowed(option: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse({**NEEDED, option: value})
    assert raised.value.option == option
    assert raised.value.value == value
    assert allowed in raised.value.allowed
    assert repr(value) in str(raised.value)


def test_an_unknown_option_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"^there is no option startingOffset\. Did you mean startingOffsets"):
        SourceOptions.parse({**NEEDED, "startingOffset": "latest"})


def test_offsets_as_json() -> None:
    positions = {"0": "12", "1": {"vbuuid": "5", "seqno": "7"}}
    assert SourceOptions.parse({**NEEDED, "startingOffsets": json.dumps(positions)}).starting_offsets is not None
    whole = {"v": 1, "bucket": "b", "collections": None, "vbuckets": {"3": {"at": ["1", "2", "0", None, "0"]}}}
    spec = SourceOptions.parse({**NEEDED, "endingOffsets": json.dumps(whole)}).ending_offsets
    assert (spec.kind, list(spec.positions)) == ("positions", [3])


def test_the_table_of_options_is_complete() -> None:
    attributes = {option.attribute for option in OPTIONS}
    of_tls = set(TlsOptions.__dataclass_fields__)
    assert attributes - of_tls == set(SourceOptions.__dataclass_fields__) - {"tls"}
    assert of_tls <= attributes


SECURED_WITHOUT_USER = {"connectionString": "couchbases://db", "bucket": "b"}
SECURED = {**NEEDED, "connectionString": "couchbases://db"}
BY_CERTIFICATE = {**SECURED_WITHOUT_USER, "certificate": "own.pem", "key": "own.key"}


def test_certificates() -> None:
    options = SourceOptions.parse({**SECURED, "trustCertificate": "ca.pem", "tlsServerName": "n", "tlsVerify": "none"})
    assert options.tls == TlsOptions(trust="ca.pem", server_name="n", verify=False)
    assert SourceOptions.parse(SECURED).tls is None


def test_a_client_certificate_stands_for_user_and_password() -> None:
    options = SourceOptions.parse({**BY_CERTIFICATE, "keyPassword": "secret of the key"})
    assert options.tls == TlsOptions(certificate="own.pem", key="own.key", key_password="secret of the key")
    assert (options.username, options.password) == ("", "")
    assert "secret of the key" not in repr(options)
    by_function = SourceOptions.parse({**BY_CERTIFICATE, "keyPasswordFunction": "vault:word"})
    assert by_function.tls == replace(options.tls, key_password=SecretFunction("vault:word", "keyPasswordFunction"))


def test_login_and_network() -> None:
    options = SourceOptions.parse({**SECURED, "saslMechanism": "PLAIN", "network": "external"})
    assert (options.sasl_mechanism, options.network) == ("PLAIN", "external")


def test_stable_reading_and_purge_gaps() -> None:
    options = SourceOptions.parse({**NEEDED, "readStable": "True", "purgeGap": "Ignore"})
    assert options.read_stable
    assert options.purge_gap == options.effective_purge_gap == "ignore"
    assert not SourceOptions.parse(NEEDED).read_stable
    assert SourceOptions.parse(NEEDED).effective_purge_gap == "fail"
    assert SourceOptions.parse({**NEEDED, "onRollback": "rewindAndMark"}).effective_purge_gap is None


@each_case(
    ("options", "option"),
    [
        ({**NEEDED, "trustCertificate": "ca.pem"}, "trustCertificate"),
        ({**NEEDED, "saslMechanism": "PLAIN"}, "saslMechanism"),
        ({**SECURED, "saslMechanism": "GSSAPI"}, "saslMechanism"),
        ({**SECURED, "tlsVerify": "perhaps"}, "tlsVerify"),
        ({**SECURED, "key": "own.key"}, "key"),
        ({**BY_CERTIFICATE, "username": "u"}, "username"),
        ({**NEEDED, "readStable": "yes"}, "readStable"),
        ({**NEEDED, "purgeGap": "hope"}, "purgeGap"),
        ({**NEEDED, "purgeGap": "reconcile"}, "purgeGap"),
    ],
)
def test_what_does_not_go_together(options: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse(options)
    assert raised.value.option == option


@each_case(
    ("options", "told"),
    [
        ({"replay": "spool"}, "replay=spool needs the directory of its files. Give spoolDirectory"),
        (
            {"spoolDirectory": "/spool"},
            "spoolDirectory is given without replay=spool, which uses it. Give both, or neither",
        ),
        (
            {"purgeGap": "reconcile"},
            "purgeGap=reconcile starts a vbucket over, which is a rollback to its beginning. Give onRollback=",
        ),
        (
            {"include": "deletes", "columns": "key,xattrs"},
            "columns has xattrs, and the option include has not. Add xattrs to include",
        ),
        (
            {"key": "own.key", **SECURED},
            "the key of a client certificate is given without the certificate. Give both, ",
        ),
        ({"saslMechanism": "PLAIN"}, "the mechanism PLAIN sends the password as it is, so it needs TLS. Begin the "),
        ({"username": "u", **BY_CERTIFICATE}, "a client certificate is given together with a user, a password or a "),
        ({"passwort": "hidden"}, "there is no option passwort. Did you mean password? Known are connectionString, "),
        ({"where": "key = 3"}, "where cannot be 'key = 3': in 'key = 3': key is a text: write '3' in single "),
    ],
)
def test_a_refusal_is_one_sentence_and_what_to_do(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse(options if "connectionString" in options else NEEDED | options)
    assert str(raised.value).startswith(told)


@each_case(("text", "size"), [("4096", 4096), ("512k", 512 * 1024), ("64m", 64 * 2**20), ("1GB", 2**30)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert SourceOptions.parse({**NEEDED, "maxBytesPerTrigger": text}).max_bytes_per_trigger == size


@each_case(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2H", 7200), ("0s", 0)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert SourceOptions.parse({**NEEDED, "maxTriggerDelay": text}).max_trigger_delay_s == seconds


@each_case(
    ("option", "text"),
    [("maxBytesPerTrigger", "12"), ("maxBytesPerTrigger", "1t"), ("maxBytesPerTrigger", "x"), ("maxTriggerDelay", "5"),
     ("maxTriggerDelay", "9999h"), ("minOffsetsPerTrigger", "-1"), ("minPartitions", "0")],
)  # fmt: skip
def test_limits_that_cannot_be_are_refused(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=option):
        SourceOptions.parse({**NEEDED, option: text})


def test_fail_on_data_loss_is_a_default_for_other_options() -> None:
    def parsed(**options: str) -> tuple[str, str, str | None]:
        found = SourceOptions.parse({**NEEDED, **options})
        return found.on_rollback, found.on_bucket_reset, found.effective_purge_gap

    assert parsed() == parsed(failOnDataLoss="true") == ("fail", "fail", "fail")
    assert parsed(failOnDataLoss="false") == ("rewindAndMark", "rebuild", None)
    assert parsed(failOnDataLoss="false", onBucketReset="fail") == ("rewindAndMark", "fail", None)
    assert parsed(failOnDataLoss="false", onRollback="fail") == ("fail", "rebuild", "fail")
    assert parsed(purgeGap="ignore") == ("fail", "fail", "ignore")
    with pytest.raises(ConfigError, match="ignore loses deletions"):
        parsed(failOnDataLoss="true", purgeGap="ignore")


def test_system_documents_are_left_out_by_default() -> None:
    assert SourceOptions.parse(NEEDED).row_filter == RowFilter(leaves_out_system=True)
    assert SourceOptions.parse({**NEEDED, "systemDocuments": "true"}).row_filter is None
    both = SourceOptions.parse({**NEEDED, "where": "vbucket = 1"}).row_filter
    assert both == replace(parse_where("vbucket = 1"), leaves_out_system=True)
    with pytest.raises(ConfigError, match="systemDocuments=true") as raised:
        SourceOptions.parse({**NEEDED, "collections": "shop.orders,_system._mobile"})
    assert raised.value.option == "collections"
    SourceOptions.parse({**NEEDED, "collections": "_system.*", "systemDocuments": "TRUE"})
    SourceOptions.parse({**NEEDED, "collections": "_default._default,_default,_default.*"})
