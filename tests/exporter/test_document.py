"""What a worker tells of itself is never trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slot_worker import CRASH_PLAN, DOCUMENT
from strange import JSON, patient

from ws_guard.exporter.document import INFO_KEYS, parse_document


def test_what_is_well_told_is_taken() -> None:
    document = parse_document(DOCUMENT | {"rank": "3", "expected_workers": 8})
    assert (document.engine, document.rank, document.expected_workers) == ("0", "3", 8)
    assert document.layout is not None
    assert document.layout.name == "B"
    assert document.contract == "verified"
    assert document.info["model_name"] == "deepseek"
    assert document.plans is None
    assert tuple(document.info) == INFO_KEYS


@patient
@given(st.dictionaries(st.sampled_from([*DOCUMENT, "expected_workers"]), JSON))
def test_no_document_is_too_strange(told: dict[str, object]) -> None:
    document = parse_document(told)
    texts = [document.engine, document.rank, *document.ops, *document.info.values()]
    assert all(text.isprintable() and len(text) <= 128 for text in texts)
    assert document.engine
    assert document.rank


@patient
@given(st.dictionaries(st.sampled_from(list(CRASH_PLAN)), JSON))
def test_no_plan_is_too_strange(site: dict[str, object]) -> None:
    plans = parse_document({"planned": [site]}).plans
    assert plans is not None
    assert len(plans) == 1


@pytest.mark.parametrize("wrong", [True, "8", 8.0, 0, -1, 1 << 40, None, [8]])
def test_an_expected_number_of_workers_that_cannot_be_is_not_told(wrong: object) -> None:
    assert parse_document({"expected_workers": wrong}).expected_workers is None


def test_texts_lose_what_would_break_a_line_or_a_terminal() -> None:
    document = parse_document({"rank": "1\n\x1b[2J\ud800\u202e", "engine": 7})
    assert document.rank == "1??[2J??"
    assert document.engine == "7"


def test_free_texts_lose_their_paths() -> None:
    told = {"problems": ["board /dev/shm/ws_guard-0: full", 3, None, ""], "contract_reason": "/a/b"}
    document = parse_document(told)
    assert document.problems == ("board (path): full", "3")
    assert document.contract_reason == "(path)"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "OSError: [Errno 2] gone: '/home/ada lovelace/my board/x'",
            "OSError: [Errno 2] gone: '(path)'",
        ),
        ('cannot open "/mnt/a, b/c" (/tmp/log)', 'cannot open "(path)" ((path))'),
        (
            "from './models/a b' to ../c/d, ~/e and ./f",
            "from '(path)' to (path), (path) and (path)",
        ),
        ("PATH=/usr/bin:/home/ada/bin", "PATH=(path):(path)"),
        ("file:///home/ada/x s3://bucket/key", "file:(path) s3:(path)"),
        ("it's '/a' and 'b'", "it's '(path)' and 'b'"),
        ("1/2 of and/or, 394 MiB/s, org/model", "1/2 of and/or, 394 MiB/s, org/model"),
        ("...", "..."),
    ],
)
def test_paths_of_every_kind(text: str, left: str) -> None:
    assert parse_document({"warnings": [text]}).warnings == (left,)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("deepseek-ai/DeepSeek-V4", "deepseek-ai/DeepSeek-V4"),
        ("v1.2:latest", "v1.2:latest"),
        (".5B/model", ".5B/model"),
        ("/mnt/models/deepseek/", "deepseek"),
        ("./deepseek", "deepseek"),
        ("../../models/deepseek/", "deepseek"),
        ("~/models/deepseek", "deepseek"),
        ("~ada/deepseek", "deepseek"),
        ("s3://bucket/models/deepseek", "deepseek"),
        ("file:///home/ada/deepseek", "deepseek"),
    ],
)
def test_of_a_name_that_is_a_place_the_last_part(told: str, name: str) -> None:
    assert parse_document({"info": {"model_name": told}}).info["model_name"] == name


def test_names_beyond_a_list_are_other() -> None:
    document = parse_document({"ops": ["one", ""], "workspaces": [f"w{n}" for n in range(12)]})
    assert [document.op_name(index) for index in (0, 1, 2)] == ["one", "op1", "other"]
    assert [document.workspace_name(index) for index in (7, 8)] == ["w7", "other"]


def test_no_plan_and_a_plan_without_sites_are_two_things() -> None:
    assert parse_document({"planned": None}).plans is None
    assert parse_document({"planned": "none"}).plans is None
    assert parse_document({"planned": []}).plans == {}


def test_margins_of_a_plan_follow_from_its_sizes() -> None:
    told = CRASH_PLAN | {"margin_bytes": 5, "margin_ratio": float("nan"), "margin_batch": 5}
    plans = parse_document({"planned": [told]}).plans
    assert plans is not None
    plan = plans["ws0"]
    # 413,138,944 - 2,156,920,832 bytes; 3,080 - 16,384 rows.
    assert (plan.margin_bytes, plan.margin_batch) == (-1_743_781_888, -13_304)
    assert plan.margin_ratio == -1_743_781_888 / 413_138_944


def test_plans_beyond_eight_workspaces_share_a_name_and_show_the_worst() -> None:
    sites = [CRASH_PLAN | {"workspace": f"s{n}", "need_bytes": 1000 + n} for n in range(10)]
    plans = parse_document({"planned": sites, "workspaces": ["ws0"]}).plans
    assert plans is not None
    assert sorted(plans) == ["other", "s0", "s1", "s2", "s3", "s4", "s5", "s6"]
    assert plans["other"].need_bytes == 1009
