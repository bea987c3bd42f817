"""Settings: defaults, every bad value named with the allowed ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ws_guard.settings import (
    DECLARED,
    SettingError,
    parse_listen,
    parse_size,
    read_settings,
    require_settings,
)


def test_defaults() -> None:
    settings, problems = read_settings({})
    assert problems == []
    assert settings.enabled
    assert settings.board == f"/dev/shm/ws_guard-{os.getuid()}"
    assert (settings.sizing, settings.on_overflow) == ("auto", "observe")
    assert settings.zone_interval_seconds == 1.0
    assert settings.listen == "127.0.0.1:19456"
    assert settings.expected_workers is None
    assert settings.min_margin_bytes == 0


def test_every_field_is_declared_once() -> None:
    fields = [field for field, _, _ in DECLARED.values()]
    assert sorted(fields) == sorted(read_settings({})[0]._fields)


def test_the_documented_table_is_the_real_one() -> None:
    text = (Path(__file__).parents[1] / "docs" / "HOW_IT_WORKS.md").read_text()
    table = text.partition("## Settings")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `WS_GUARD_")]
    told = {name: row[2].strip().strip("`") for row in rows for name in row[1].split("`")[1::2]}
    assert sorted(told) == sorted(DECLARED)
    # A default that is written down is the one that holds when it is set
    for name, default in told.items():
        environ = {name: default.replace("<uid>", str(os.getuid()))}
        assert read_settings(environ) == read_settings({}), name
        # And one that is left out is none
        assert default or not getattr(read_settings({})[0], DECLARED[name][0])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("WS_GUARD_SZIING", "WS_GUARD_SIZING"),
        ("WS_GUARD_OVERFLOW", "WS_GUARD_ON_OVERFLOW"),
        ("WS_GUARD_EXPECTED_WORKER", "WS_GUARD_EXPECTED_WORKERS"),
        ("WSGUARD_BOARD", "WS_GUARD_BOARD"),
        ("ws_guard_strict", "WS_GUARD_STRICT"),
    ],
)
def test_a_misspelt_setting(name: str, meant: str) -> None:
    settings, problems = read_settings({name: "0"})
    assert problems == [f"{name} is no setting: did you mean {meant}?"]
    assert settings == require_settings({name: "0"}) == read_settings({})[0]


@pytest.mark.parametrize(
    "name",
    # What Kubernetes makes for a Service named ws-guard, and what is nobody's business here
    ["WS_GUARD_PORT", "WS_GUARD_SERVICE_HOST", "WS_GUARD_PORT_19456_TCP", "WSL_DISTRO_NAME", "WS"],
)
def test_what_is_no_misspelt_setting(name: str) -> None:
    assert read_settings({name: "tcp://10.0.0.1:19456"})[1] == []


def test_a_line_for_others_leaves_the_value_out() -> None:
    """A worker's lines are read by whoever can ask the exporter."""
    for name, (_, parse, _) in DECLARED.items():
        if parse not in (str, os.path.expanduser):
            (line,) = read_settings({name: "s3cret value"})[1]
            assert line.startswith(f"{name} has a value that is not allowed: ")
            assert "s3cret" not in line
            with pytest.raises(SettingError, match="s3cret"):
                require_settings({name: "s3cret value"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("WS_GUARD_ENABLED", "maybe", "use 1 or 0"),
        ("WS_GUARD_SIZING", "on", "use auto or off"),
        ("WS_GUARD_ON_OVERFLOW", "crash", "use observe or raise or split"),
        ("WS_GUARD_ZONE_INTERVAL", "0", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_ZONE_INTERVAL", "0.009", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_ZONE_INTERVAL", "3601", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_ZONE_INTERVAL", "-1", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_ZONE_INTERVAL", "nan", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_ZONE_INTERVAL", "1e3", "use seconds from 0.01 to 3600"),
        ("WS_GUARD_LISTEN", "19456", "is not host:port"),
        ("WS_GUARD_LISTEN", "tcp://10.0.0.1:80:x", "is not host:port"),
        ("WS_GUARD_EXPECTED_WORKERS", "0", "use a whole number from 1 up"),
        ("WS_GUARD_MIN_MARGIN_BYTES", "lots", "is not a size"),
        ("WS_GUARD_TRUSTED_UIDS", "root", "use numeric user ids"),
    ],
)
def test_a_bad_value_is_named_and_the_default_stands(name: str, text: str, words: str) -> None:
    settings, problems = read_settings({name: text})
    assert len(problems) == 1
    assert name in problems[0]
    assert words in problems[0]
    assert settings == read_settings({})[0]
    with pytest.raises(SettingError, match=name):
        require_settings({name: text})


@pytest.mark.parametrize(("text", "seconds"), [("0.01", 0.01), ("5", 5.0), (" 3600 ", 3600.0)])
def test_a_zones_interval(text: str, seconds: float) -> None:
    settings, problems = read_settings({"WS_GUARD_ZONE_INTERVAL": text})
    assert (settings.zone_interval_seconds, problems) == (seconds, [])


def test_good_values() -> None:
    settings = require_settings(
        {
            "WS_GUARD_ENABLED": "0",
            "WS_GUARD_BOARD": "/run/board",
            "WS_GUARD_TLS_CERT": "~/cert.pem",
            "WS_GUARD_TRUSTED_UIDS": "0, 1000",
            "WS_GUARD_MIN_MARGIN_BYTES": "64MiB",
            "WS_GUARD_STRICT": "true",
            "WS_GUARD_EXPECTED_WORKERS": "8",
            "WS_GUARD_LISTEN": "  ",
        }
    )
    assert not settings.enabled
    assert settings.board == "/run/board"
    assert settings.tls_cert == str(Path.home() / "cert.pem")
    assert settings.trusted_uids == (0, 1000)
    assert settings.min_margin_bytes == 67_108_864
    assert settings.strict
    assert settings.expected_workers == 8
    assert settings.listen == "127.0.0.1:19456"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("413138944", 413_138_944),
        ("413_138_944", 413_138_944),
        ("394MiB", 413_138_944),
        ("394 mib", 413_138_944),
        ("1.5GiB", 1_610_612_736),
        ("2GB", 2_000_000_000),
        ("0.1KB", 100),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "12 parsecs", "0.3B", "1.5.5MiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "hosts", "port"),
    [
        ("127.0.0.1:19456", ["127.0.0.1"], 19456),
        ("[::1]:0", ["::1"], 0),
        ("*:19456", ["0.0.0.0", "::"], 19456),
        ("localhost:1", ["localhost"], 1),
    ],
)
def test_listen(text: str, hosts: list[str], port: int) -> None:
    assert parse_listen(text) == (hosts, port)


@pytest.mark.parametrize("text", [":80", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        parse_listen(text)
