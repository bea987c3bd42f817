"""The tests beside this would notice: what is wrong in a document fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from blocks import ROOT, indented_of
from stage import commands_of
from test_commands import pattern_of
from test_links import anchors_of
from test_words import parse, parts_of

if TYPE_CHECKING:
    from pathlib import Path

    from stage import Stage


@pytest.mark.parametrize(
    "command",
    [
        "nvidia-smi",
        "ws-guard plan --head 64",
        "ws-guard explain no-such.log",
        "WS_GUARD_ON_OVERFLOW=explode vllm serve ...",
        "echo $NO_SUCH_VARIABLE",
        "ws-guard plan --heads | cat",
        "make no-such-target",
        "python -m benchmarks.probe --no-such-flag",
        "python -m pytest tests/no_such_room",
        "pip install 'ws-guard[exporters]'",
        "pip install wsguard",
        "helm install vllm dashboards/kubernetes/chart --set image.registri=a",
        "kubectl exec $POD -c exporters -- ws-guard status",
        "kubectl -n $NS port-forward $POD 19457",
        "docker compose up --bild",
        "docker ps",
        "ws-guard demo --twice",
        "curl -s http://127.0.0.1:19456/metric",
    ],
)
def test_a_command_that_would_not_work(command: str, stage: Stage) -> None:
    (done,) = stage.run(command)
    assert done.code not in (0, 1), done.output


@pytest.mark.parametrize("span", ["ws-guard plam", "ws-guard plan --head 64 -- vllm serve ..."])
def test_a_command_in_a_sentence(span: str) -> None:
    (arguments,) = parts_of(span)
    with pytest.raises(Exception, match=r"(?i)no such"):
        parse(arguments[1:], span)


def test_output_that_is_another() -> None:
    pattern = pattern_of("FITS\n  ...\n  threshold 3,080 rows, at 2026-12-01 04:27:17.603\n")
    told = "FITS\n  a\n  b\n  threshold 3,080 rows, at 2027-01-01 00:00:00.000\n"
    assert re.fullmatch(pattern, told)
    assert not re.fullmatch(pattern, told.replace("3,080", "3,081"))
    assert not re.fullmatch(pattern, told + "and more\n")
    assert not re.fullmatch(pattern, told.replace("FITS", "DOES NOT FIT"))


def test_a_command_is_put_together() -> None:
    script = "# a comment\na \\\n  b  # c\ncat <<'LOG'\nd\n\n# e\nLOG\nfor x in f; do\n  g\ndone\n"
    loop = "for x in f; do\n  g\ndone"
    assert commands_of(script) == ["a \\\n  b  # c", "cat <<'LOG'\nd\n\n# e\nLOG", loop]
    with pytest.raises(AssertionError, match="without an end"):
        commands_of("cat <<'LOG'\n")


def test_a_command_in_an_indented_block(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n    ws-guard status\n\n- a list\n    goes on\n")
    assert indented_of(tmp_path / "a.md") == ["ws-guard status", ""]


def test_anchors_are_those_of_headings() -> None:
    known = anchors_of(ROOT / "docs" / "GUARD.md")
    assert "what-was-measured-and-where" in known
    assert "measured" not in known
