"""A probe from its installation to its end: what it shows, what it offers, what it leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slot_views import ReadSlot, ReadSlots

import ws_guard
import ws_guard.probe
from ws_guard import InputError, Probe, install
from ws_guard.probe import stand_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard import Plan

    Install = Callable[..., Probe]


def test_worker_is_on_the_board_before_its_first_call(installed: Install, slot: ReadSlot) -> None:
    installed(engine=3, rank=5)
    told = slot()
    assert (told.pid, told.alive, told.closed) == (os.getpid(), True, False)
    assert (told.document["engine"], told.document["rank"]) == ("3", "5")
    assert told.document["problems"] == []
    assert told.rows == []


def test_process_that_stands_by_is_on_the_board_once_it_attaches(
    monkeypatch: pytest.MonkeyPatch, board: str, slot: ReadSlot
) -> None:
    monkeypatch.setenv("WS_GUARD_BOARD", board)
    probe = stand_by()
    try:
        probe.describe(info={"engine_name": "vllm"})
        assert not Path(board).exists()
        probe.attach(engine="2", rank="3", info={"tp": "8"})
        told = slot()
        assert (told.document["engine"], told.document["rank"]) == ("2", "3")
        assert told.document["info"].items() >= {"engine_name": "vllm", "tp": "8"}.items()
        probe.attach(rank="4")
        assert slot().attached_ns == told.attached_ns
        assert slot().document["rank"] == "4"
        assert stand_by() is probe
    finally:
        probe.uninstall()
    assert not list(Path(board).iterdir())


def test_second_install_is_the_first(
    installed: Install, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    first = installed()
    assert install() is first
    assert caplog.messages == []
    assert install(engine="7") is first
    assert install(on_overflow="raise") is first
    (line, again) = caplog.messages
    assert line == again
    assert "already installed, arguments ignored" in line
    assert (slot().document["engine"], slot().document["rank"]) == ("0", "0")


def test_uninstalled_probe_may_be_installed_again(installed: Install, slots: ReadSlots) -> None:
    first = installed()
    first.uninstall()
    assert slots() == []
    assert installed() is not first
    assert [each.alive for each in slots()] == [True]
    # The old one has nothing left to undo.
    first.uninstall()
    assert [each.alive for each in slots()] == [True]


def test_a_probe_that_is_off_takes_whatever_it_is_told(
    installed: Install, board: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WS_GUARD_ENABLED", "0")
    probe = installed()
    probe.attach(device="cuda:0")
    probe.describe(model_name="m")
    probe.name_sites(lambda _address, _op: "site")
    probe.report("nothing that anybody reads")
    probe.after_fork()
    assert repr(probe) == "<ws_guard.Probe: off>"
    assert (probe.layout, probe.counter_of_replays()) == (None, None)
    with pytest.raises(InputError, match=r"nothing is instrumented here \(switched off\)"):
        probe.provision(plan, "cpu")
    probe.close()
    assert not os.path.exists(board)


@pytest.mark.usefixtures("flashinfer")
def test_a_provision_comes_from_a_probe_that_is_on(installed: Install, plan: Plan) -> None:
    pytest.importorskip("torch")
    probe = installed()
    made = probe.provision(plan, "cpu", workspace_bytes=4096, zone_bytes=2048)
    assert isinstance(made, ws_guard.Provision)
    assert made.bytes == 4096
    probe.uninstall()
    with pytest.raises(InputError, match=r"nothing is instrumented here \(uninstalled\)"):
        probe.provision(plan, "cpu")


@pytest.mark.usefixtures("flashinfer")
def test_a_probe_says_where_it_is(
    installed: Install, slot: ReadSlot, board: str, tmp_path: Path
) -> None:
    probe = installed()
    assert probe.layout is not None
    (name,) = os.listdir(board)
    assert repr(probe) == f"<ws_guard.Probe: contract verified, {board}/{name}>"
    assert slot().pid == os.getpid()
    probe.uninstall()
    (tmp_path / "file").touch()
    nowhere = installed(board=str(tmp_path / "file" / "board"))
    assert repr(nowhere).startswith("<ws_guard.Probe: contract verified, no board: ")


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Provisions'"):
        ws_guard.probe.Provisions  # noqa: B018 - it raises
