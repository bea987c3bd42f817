"""Files that are replaced while we serve."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doors import wait_until

from ws_guard.exporter.renewal import Renewal, RenewalThread

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def number_in(path: Path) -> Callable[[], str]:
    """Reads the file; "bad" is broken."""

    def load() -> str:
        try:
            text = path.read_text()
        except OSError as error:
            raise ValueError(f"it is gone: {error.strerror}") from None
        if text == "bad":
            raise ValueError("it is bad")
        return text

    return load


def renewed(renewal: Renewal[str]) -> list[str]:
    """The lines of three looks: one sees a change, the next takes it in."""
    return [line for line in (renewal.look() for _ in range(3)) if line]


def test_a_file_that_changes_is_taken_in(file: Path) -> None:
    renewal = Renewal("the file", [str(file)], number_in(file))
    assert (renewal.value, renewed(renewal)) == ("one", [])
    file.write_text("other")
    assert renewed(renewal) == ["ws-guard: the file was renewed"]
    assert renewal.value == "other"


def test_a_file_that_another_takes_the_place_of(file: Path, tmp_path: Path) -> None:
    """The same length and the same time: the file is another one."""
    renewal = Renewal("the file", [str(file)], number_in(file))
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").replace(file)
    assert renewed(renewal) == ["ws-guard: the file was renewed"]
    assert renewal.value == "two"


def test_a_broken_one_is_told_once_and_the_old_one_stays(file: Path) -> None:
    renewal = Renewal("the file", [str(file)], number_in(file))
    file.write_text("bad")
    assert renewed(renewal) == ["ws-guard: it is bad; the file from before stays in use"]
    assert renewal.value == "one"
    file.write_text("bad")  # written again, and no better
    assert renewed(renewal) == []
    file.unlink()
    assert renewed(renewal) == [
        "ws-guard: it is gone: No such file or directory; the file from before stays in use"
    ]
    file.write_text("whole")
    assert renewed(renewal) == ["ws-guard: the file was renewed"]
    assert renewal.value == "whole"
    file.write_text("bad")
    assert len(renewed(renewal)) == 1


def test_files_that_are_replaced_one_by_one_are_taken_once_they_rest(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("a")

    def load() -> str:
        if one.read_text() != other.read_text():
            raise ValueError("they are no pair")
        return one.read_text()

    renewal = Renewal("the pair", [str(one), str(other)], load)
    one.write_text("bb")
    assert renewal.look() == ""
    other.write_text("bb")
    assert renewal.look() == ""
    assert renewal.look() == "ws-guard: the pair was renewed"
    assert renewal.value == "bb"


def test_one_that_is_broken_at_first_is_an_error(file: Path) -> None:
    file.write_text("bad")
    with pytest.raises(ValueError, match="it is bad"):
        Renewal("the file", [str(file)], number_in(file))


def test_the_thread_looks_and_tells(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    renewal = Renewal("the file", [str(file)], number_in(file))
    thread = RenewalThread([renewal], interval=0.001)
    thread.start()
    file.write_text("other")
    wait_until(lambda: renewal.value == "other")
    thread.stop()
    assert capfd.readouterr().err == "ws-guard: the file was renewed\n"


def test_the_thread_outlives_the_reader_of_its_lines(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    renewal = Renewal("the file", [str(file)], number_in(file))
    thread = RenewalThread([renewal], interval=0.001)
    with open(writing, "w") as broken:
        monkeypatch.setattr("sys.stderr", broken)
        thread.start()
        for text in ("other", "third"):
            file.write_text(text)
            wait_until(lambda: renewal.value == text)  # noqa: B023 - waited for here
        thread.stop()


def test_without_files_there_is_no_thread() -> None:
    thread = RenewalThread([])
    thread.start()
    assert not [one for one in threading.enumerate() if one.name == "ws-guard-renewal"]
    thread.stop()
