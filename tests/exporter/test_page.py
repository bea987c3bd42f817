"""The status page: what it shows, and that nothing from a slot becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, TypeAlias

import pytest
from slot_worker import CRASH_PLAN, FIXED_PLAN

from ws_guard.board import OVERFLOW
from ws_guard.exporter import page
from ws_guard.exporter.checks import examine

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach

    from ws_guard.exporter.refresh import Refresher
    from ws_guard.settings import Settings

    Render: TypeAlias = Callable[[], str]

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>${x}$title"


class Elements(HTMLParser):
    """The elements of a page, its text, and whether what was opened was closed."""

    VOID = ("meta", "link", "br", "img", "rect", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.found)


@pytest.fixture
def render(refresher: Refresher, settings: Callable[..., Settings]) -> Render:
    """The page after a fresh read of the board."""

    def read() -> str:
        health = examine(refresher.refresh(), settings())
        return page.render(health, refresher.log.recent)

    return read


def rows(text: str) -> list[str]:
    body = re.search(r'<tbody id="rows".*?</tbody>', text, re.DOTALL)
    assert body is not None
    return re.findall(r"<tr>.*?</tr>", body[0])


def test_an_empty_board(render: Render) -> None:
    shown = Elements(render())
    assert "Not ready" in shown.text
    assert "no worker has attached yet" in shown.text


def test_a_sound_board(attach: Attach, render: Render) -> None:
    attach(planned=[FIXED_PLAN]).call(3_000, workspace_bytes=2_561_671_168)
    text = render()
    shown = Elements(text)
    assert "<title>Ready · ws_guard</title>" in text
    assert "What to set" not in shown.text
    assert "19,472 rows" in shown.text
    # (2,561,671,168 - 2,156,920,832) / 2,561,671,168
    assert "15.8%" in shown.text


def test_the_reported_crash(attach: Attach, render: Render) -> None:
    worker = attach(planned=[CRASH_PLAN])
    worker.overflow(12_288)
    text = render()
    shown = Elements(text)
    assert "<title>Not ready · ws_guard</title>" in text
    assert "<code>VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168</code>" in text
    assert "3,080 rows at most; 16,384 rows need 2.0 GiB" in shown.text
    assert "overflowed" in shown.text
    assert "12,288 rows need 1.5 GiB of 394.0 MiB" in shown.text  # the last event


@pytest.mark.parametrize(
    ("actions", "told"),
    [
        (["split"], '<span class="pill warn">split</span>'),
        (["split", "raised"], '<span class="pill warn">raised</span>'),
        (["split", "observed"], '<span class="pill fail">overflowed</span>'),
    ],
    ids=["split", "raised", "observed"],
)
def test_an_overflow_that_was_handled_is_a_warning(
    actions: list[str], told: str, attach: Attach, render: Render
) -> None:
    worker = attach()
    for action in actions:
        worker.event(OVERFLOW, action)
    worker.call(5)
    render()  # what the ring does not tell is waited for once
    shown = render()
    (row,) = rows(shown)
    assert told in row
    # One event each: only what was observed is red.
    observed = actions.count("observed")
    assert shown.count('<span class="pill fail">overflow</span>') == observed
    assert shown.count('<span class="pill warn">overflow</span>') == len(actions) - observed


def test_a_peak_that_did_not_fit_is_advice_without_a_plan(attach: Attach, render: Render) -> None:
    attach().overflow(3_081)
    assert "Give the workspace 818,020,352 bytes" in Elements(render()).text


def test_the_bar_shows_a_need_beyond_the_workspace(attach: Attach, render: Render) -> None:
    attach(planned=[CRASH_PLAN]).call(3_080)
    (row,) = rows(render())
    # Scaled to the planned need: 1,000 * 413,138,944 / 2,156,920,832 = 191.5.
    assert '<rect class="track" x="0.0" y="2" width="191.5"' in row
    assert '<rect class="above" x="191.5" y="2" width="808.5"' in row
    assert '<rect class="peak" x="0.0" y="5" width="191.5"' in row
    assert 'aria-label="workspace 394.0 MiB, peak 394.0 MiB, planned 2.0 GiB"' in row


def test_a_need_inside_the_workspace_is_on_its_scale(attach: Attach, render: Render) -> None:
    attach().call(1_540)
    (row,) = rows(render())
    # (8,388,608 + 131,072 * 1,540 + 1,048,576) / 413,138,944 = 0.51142
    assert '<rect class="track" x="0.0" y="2" width="1000.0"' in row
    assert '<rect class="peak" x="0.0" y="5" width="511.4"' in row


def test_worst_comes_first(attach: Attach, render: Render) -> None:
    attach(rank="0").call(100)
    attach(rank="1").call(2_000)
    troubled = attach(rank="2")
    troubled.event(OVERFLOW, "split")
    troubled.call(5)
    attach(rank="3").die()
    order = [re.search(r"0 / (\d)", row) for row in rows(render())]
    assert [match[1] for match in order if match] == ["3", "2", "1", "0"]


@pytest.mark.parametrize("ranks", [1, 8, 72])
def test_it_is_whole_with_many_ranks(attach: Attach, render: Render, ranks: int) -> None:
    for rank in range(ranks):
        attach(rank=str(rank), planned=[FIXED_PLAN]).call(rank + 1)
    text = render()
    assert len(rows(text)) == ranks
    assert Elements(text).count("svg") == ranks


def test_nothing_from_a_slot_becomes_markup(attach: Attach, render: Render) -> None:
    harmless = Elements(render())
    worker = attach(
        engine=ATTACK,
        rank=ATTACK,
        ops=[ATTACK],
        workspaces=[ATTACK],
        contract="mismatch",
        contract_reason=ATTACK,
        info=dict.fromkeys(("model_name", "engine_name", "tp", "dcp", "device"), ATTACK),
        planned=[CRASH_PLAN | {"workspace": ATTACK, "env": {ATTACK: ATTACK}, "reasons": [ATTACK]}],
        problems=[ATTACK],
    )
    worker.overflow(4_000)
    worker.event(OVERFLOW, "raised")
    render()
    text = render()  # the second read tells the event that is in no ring
    shown = Elements(text)
    assert shown.count("script") == harmless.count("script") == 1
    assert shown.count("img") == 0
    assert not [attrs for _, attrs in shown.found if any(name.startswith("on") for name in attrs)]
    assert "alert(1)" in shown.text
    assert "${x}$title" in shown.text


def test_the_policy_lets_nothing_in_but_the_page_itself(render: Render) -> None:
    text, policy = render(), page.CONTENT_SECURITY_POLICY
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for tag, attrs in Elements(text).found:
        assert "style" not in attrs, tag  # the policy would drop it
        assert not str(attrs.get("src") or attrs.get("href") or "").startswith(("http", "//"))


def test_what_workers_complain_of_is_shown_once(attach: Attach, render: Render) -> None:
    for rank in ("0", "1"):
        attach(rank=rank, problems=["WS_GUARD_SIZING: use auto or off"])
    attach(rank="2", problems=["installed too late for two objects"])
    shown = Elements(render())
    assert shown.text.count("WS_GUARD_SIZING: use auto or off") == 1
    assert "2 ranks" in shown.text
    assert "installed too late" in shown.text


def test_it_reads_without_a_mouse_or_a_screen(attach: Attach, render: Render) -> None:
    attach(planned=[FIXED_PLAN]).call(5)
    found = Elements(render()).found
    assert ("html", {"lang": "en"}) in found
    roles = [attrs.get("role") for _, attrs in found if "role" in attrs]
    assert sorted(filter(None, roles)) == ["alert", "img", "region", "status"]
    assert all("scope" in attrs for tag, attrs in found if tag == "th")
    (scroll,) = [attrs for _, attrs in found if attrs.get("class") == "scroll"]
    assert scroll["tabindex"] == "0"  # the keyboard scrolls it
