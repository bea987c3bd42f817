"""The model's heads: by the log, by this machine, by the step that failed, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from messages import CRASH, FLAGS, NO_HUB, STATS, VLLM, failed_step, overflow
from solutions import triples

from ws_guard.explain.logs import explain_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

#: The reported crash, whose log does not tell the heads.
TOLD = [
    "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] vLLM API server version 0.26.0",
    (
        "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] non-default args: {'model_tag': "
        "'zai-org/GLM-5.2', 'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
        "'max_num_seqs': 24, 'max_num_batched_tokens': 16384}"
    ),
]
HEADS_NOTE = "how many heads the kernel saw is not certain: what to set holds for up to 128"
CONFIG = '{\n  "num_attention_heads": 64,\n  "hidden_size": 6144\n}\n'


def test_the_largest_step_of_every_model_that_it_may_be(explain_one: ExplainOne) -> None:
    found = explain_one([*TOLD, CRASH])
    assert found.confidence == "consistent"
    # 48, 64, 96 and 128 heads ask for 1,611,661,312 bytes in steps of up to 16,384 tokens; gathered
    # over DCP 8, all are multiples of 8. 128: 394 MiB + 8 * 128 * 16,384 * 256 + 1 MiB.
    assert found.recommended_workspace_bytes == 4_709_154_816
    assert found.env == {VLLM: "4709154816"}
    (note,) = [note for note in found.notes if note.startswith(HEADS_NOTE)]
    # 64: 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert "2,561,671,168 bytes for 64" in note
    assert {each.num_qo_heads % 8 for each in found.solutions} == {0}
    assert not any("holds for this call" in note for note in found.notes)


def test_heads_that_follow_from_the_largest_step(explain_one: ExplainOne) -> None:
    # 8 * 128 * 16,384 * 256 + 1 MiB: fewer heads would be more tokens than a step has.
    found = explain_one([*TOLD, overflow(STATS, 4_296_015_872, 404_750_336)])
    assert found.recommended_workspace_bytes == 413_138_944 + 4_296_015_872
    assert not any("is not certain" in note for note in found.notes)


def test_the_step_that_failed_tells_them(explain_one: ExplainOne) -> None:
    found = explain_one([*TOLD, CRASH, failed_step(12_288)])
    assert (found.confidence, triples(found)) == ("exact", {(64, 12_288, 1)})
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert found.env == {VLLM: "2561671168"}
    assert any("the step that failed had 12,288 tokens" in note for note in found.notes)


def test_a_step_that_no_call_is_of_tells_nothing(explain_one: ExplainOne) -> None:
    """Rows may have been padded: 12,000 divide no product of heads and rows."""
    found = explain_one([*TOLD, CRASH, failed_step(12_000)])
    assert found.confidence == "consistent"
    assert {(64, 12_288, 1), (128, 6_144, 1)} <= triples(found)


def test_config_of_the_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(CONFIG)
    (tmp_path / "log").write_text(f"{FLAGS.replace('GLM', 'org/model')}\n{CRASH}\n")
    (without,) = explain_log(str(tmp_path / "log"), NO_HUB)
    assert without.confidence == "consistent"
    (found,) = explain_log(str(tmp_path / "log"), {"HF_HUB_CACHE": str(tmp_path / "hub")})
    assert (found.confidence, triples(found)) == ("exact", {(64, 12_288, 1)})
    assert any("64 heads by the config of org/model in the hub" in note for note in found.notes)


@pytest.mark.parametrize(
    "told",
    ["non-default args: {'model_tag': 'MODEL'}", "server_args=ServerArgs(model_path='MODEL')"],
)
def test_config_at_the_path_that_the_log_names(
    told: str, tmp_path: Path, explain_one: ExplainOne
) -> None:
    model = tmp_path / "models" / "glm"
    model.mkdir(parents=True)
    lines = [told.replace("MODEL", str(model)), "tp=8 dcp=8 max_num_batched_tokens=16384", CRASH]
    assert not any("heads by the config" in note for note in explain_one(lines).notes)
    (model / "config.json").write_text(CONFIG)
    found = explain_one(lines)
    assert {each.num_qo_heads for each in found.solutions} == {64}
    assert any(f"64 heads by the config of {model} as it lies on" in note for note in found.notes)


def test_an_id_in_a_log_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explain_one: ExplainOne
) -> None:
    """From `/` an id such as `proc/kmsg` would be one; here it is a config, and not taken."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    found = explain_one(["vllm serve m/x -tp 8 -dcp 8", CRASH])
    assert any("not in the log: the model's heads" in note for note in found.notes)


ODD = '{"num_attention_heads": 64, "architectures": {"a": 1}}'


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"num_attention_heads": 1099511627776}', ODD, None]
)
def test_what_is_no_config_at_that_path(
    content: str | None, tmp_path: Path, explain_one: ExplainOne
) -> None:
    config = tmp_path / "config.json"
    config.mkdir() if content is None else config.write_text(content)
    found = explain_one([f"vllm serve {tmp_path} -tp 8 -dcp 8", CRASH])
    assert any("not in the log: the model's heads" in note for note in found.notes)


@pytest.mark.parametrize("named", [False, True], ids=["MODEL", "the model's path"])
def test_the_note_says_how_to_hand_over_what_is_missing(named: bool, tmp_path: Path) -> None:
    """One command, as it stands in the note; its numbers are those of this launch."""
    model = tmp_path / "MODEL"
    model.mkdir()
    told = f"model_path='{model}'\n" if named else ""
    log = tmp_path / "the log"
    log.write_text(f"vLLM API server version 0.26.0\n{told}{CRASH}\n")
    ws_guard = f"{sys.executable} -m ws_guard"
    first = _json(f"{ws_guard} explain '{log}' --json", tmp_path)
    assert first["confidence"] == "consistent"
    (note,) = [note for note in first["notes"] if note.startswith("not in the log")]
    (model / "config.json").write_text(CONFIG)
    command = note[note.index("(echo") :].replace("ws-guard", ws_guard)
    place = Path("/") if named else tmp_path
    found = _json(f"{command} --json", place)
    assert (found["confidence"], found["env"]) == ("exact", {VLLM: "2561671168"})


def test_the_note_names_the_model_of_the_log(explain_one: ExplainOne) -> None:
    (note,) = [note for note in explain_one([*TOLD, CRASH]).notes if "not in the log" in note]
    assert note.startswith("not in the log: the model's heads; put zai-org/GLM-5.2's config before")


def _json(command: str, place: Path) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    environ = {**os.environ, **NO_HUB, "PYTHONPATH": str(root)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=place, env=environ, capture_output=True, check=True
    )
    (finding,) = json.loads(done.stdout)["findings"]
    return dict(finding)
