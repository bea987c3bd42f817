"""What the launcher's source says: native signatures, and how it carves the workspace."""

from __future__ import annotations

import re
from typing import NamedTuple

from ws_guard.sizing import ENTRY_OF_OP, NATIVE_SLABS, Call, Entry, Layout
from ws_guard.sizing.layouts import ALIGNMENT, CarveStep, Condition, SizeRule
from ws_guard.sizing.slabs import external_counter_bytes, round_up

from .cpp import (
    Evaluator,
    Function,
    SourceError,
    calls,
    conditions_at,
    find_function,
    strip_comments,
)

#: An exported name and the function behind it.
EXPORT = re.compile(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_SLAB_OF_NATIVE = {native: slab for slab, native in NATIVE_SLABS.items()}
_ALLOCATION = r"\bfloat_allocator\.aligned_alloc<\w+>"
_MODES = {"Context": "context", "ForGen": "generation"}
# Sizes at which formulas are compared: primes, so that no two products coincide.
_SIZES = ("num_qo_heads", "batch_size", "max_q_len", "sum_seq_q", "sm_count")
_SAMPLES = tuple(
    dict(zip(_SIZES, sample, strict=True))
    for sample in (
        (1, 1, 1, 1, 149),
        (3, 5, 7, 31, 149),
        (64, 3081, 1, 3083, 149),
        (13, 17, 1031, 37, 149),
    )
)


class Facts(NamedTuple):
    """Parameter names of every exported op, and the layout that the source carves by."""

    signatures: dict[str, tuple[str, ...]]
    layout: Layout


class _SlabFacts(NamedTuple):
    step: CarveStep
    constant: int
    rounding: int


def read_facts(source: str) -> Facts:
    """Read a launcher source, or raise `SourceError` naming what was not understood."""
    text = strip_comments(source)
    exported = dict(EXPORT.findall(text))
    if not exported:
        raise SourceError("no exported function")
    functions = {op: find_function(text, exported[op]) for op in ENTRY_OF_OP if op in exported}
    if not functions:
        raise SourceError(f"none of the known ops is exported, only {', '.join(sorted(exported))}")
    signatures = {op: function.params for op, function in functions.items()}
    return Facts(signatures, _read_layout(text, functions))


def _read_layout(text: str, functions: dict[str, Function]) -> Layout:
    steps: dict[Entry, tuple[CarveStep, ...]] = {}
    external: set[Entry] = set()
    constants: dict[SizeRule, set[tuple[int, int]]] = {}
    for op, function in functions.items():
        entry = ENTRY_OF_OP[op]
        carver = _Carver(text, op, function)
        found = carver.slabs()
        steps[entry] = tuple(fact.step for fact in found)
        for fact in found:
            constants.setdefault(fact.step.size, set()).add((fact.constant, fact.rounding))
        if carver.checks_external_counter():
            external.add(entry)
    for rule, values in constants.items():
        if len(values) > 1:
            raise SourceError(f"slab rule {rule} has different constants: {sorted(values)}")
    guard, rounding = next(iter(constants.get("padded_stats", {(0, 0)})))
    counter, _ = next(iter(constants.get("counter", {(0, 0)})))
    return Layout("?", steps, frozenset(external), guard, rounding, counter)


class _Carver:
    """The launcher function behind one op, under the arguments that the op passes."""

    def __init__(self, text: str, op: str, function: Function) -> None:
        self._op = op
        self._evaluator = Evaluator(text)
        name = re.search(r"\b(\w+_launcher)\s*\(", function.body)
        if name is None:
            raise SourceError(f"{op} calls no launcher")
        launcher = find_function(text, name[1])
        self._body = launcher.body
        _, arguments = next(calls(function.body, name[1]))
        passed = dict(zip(launcher.params, arguments, strict=False))
        mode = re.search(r"TllmPagedAttentionMode::(\w+)", passed.get("mode", ""))
        self._mode = _MODES.get(mode[1]) if mode else None
        self._never_lse = passed.get("lse") == "nullptr"

    def slabs(self) -> list[_SlabFacts]:
        """The allocations that this op reaches, in order."""
        self._check_allocator()
        found = []
        allocations = list(calls(self._body, _ALLOCATION))
        if len(allocations) != self._body.count("aligned_alloc"):
            raise SourceError(f"{self._op}: an allocation that is written in another way")
        for position, arguments in allocations:
            when = self._when(position)
            if when is not None:
                found.append(self._slab(arguments, when))
        return found

    def _check_allocator(self) -> None:
        """The allocator must stand over the whole workspace, and be reached by every call."""
        stands = list(re.finditer(r"\bAlignedAllocator\s+float_allocator\b", self._body))
        if not stands:
            if "aligned_alloc" in self._body:
                raise SourceError(f"{self._op}: slabs of an unknown allocator")
            return
        _, over = next(calls(self._body[stands[0].start() :], "float_allocator"))
        if len(stands) > 1 or over != ["workspace_buffer", "workspace_size"]:
            raise SourceError(f"{self._op}: the allocator stands over ({', '.join(over)})")
        if re.search(r"\breturn\b", self._body[: stands[0].start()]):
            raise SourceError(f"{self._op}: a return before the allocator")

    def checks_external_counter(self) -> bool:
        """Whether the launcher demands a counter buffer of its own, of the size that we know."""
        for position, arguments in calls(self._body, "TVM_FFI_CHECK"):
            size = re.fullmatch(r".*multi_ctas_kv_counter_size\)?\s*>=\s*(\w+)", arguments[0])
            if size is None or self._when(position) is None:
                continue
            for sample in _SAMPLES:
                if self._value(size[1], sample) != _known_external_counter(sample):
                    raise SourceError(f"{self._op}: external counter of another size")
            return True
        return False

    def _value(self, expression: str, sample: dict[str, int]) -> int:
        return self._evaluator.value(expression, self._body, sample)

    def _when(self, position: int) -> Condition | None:
        """On what condition this op comes past a position; None if it never does."""
        when: Condition = "always"
        for condition in conditions_at(self._body, position):
            outcome = self._outcome(condition)
            if outcome is None:
                return None
            if outcome == "lse":
                when = "lse"
        return when

    def _outcome(self, condition: str) -> Condition | None:
        if condition == "lse != nullptr":
            return None if self._never_lse else "lse"
        negated = condition.startswith("!(")
        mode = re.fullmatch(r"(?:!\()?mode == TllmPagedAttentionMode::(\w+)\)?", condition)
        if mode is None or mode[1] not in _MODES:
            raise SourceError(f"{self._op}: slab under the unknown condition ({condition})")
        return "always" if (self._mode == _MODES[mode[1]]) is not negated else None

    def _slab(self, arguments: list[str], when: Condition) -> _SlabFacts:
        expression, alignment, name = arguments[0], arguments[1], arguments[2].strip('"')
        if name not in _SLAB_OF_NATIVE:
            raise SourceError(f"{self._op}: unknown slab {name}")
        if alignment != str(ALIGNMENT):
            raise SourceError(f"{self._op}: {name} is aligned to {alignment}, not {ALIGNMENT}")
        rule, constant, rounding = self._rule(expression, name)
        return _SlabFacts(CarveStep(_SLAB_OF_NATIVE[name], rule, when), constant, rounding)

    def _rule(self, expression: str, name: str) -> tuple[SizeRule, int, int]:
        """Which known rule gives the expression's value at every sample."""
        values = [self._value(expression, sample) for sample in _SAMPLES]
        nothing = self._value(expression, dict.fromkeys(_SIZES, 0))
        if set(values) == {0}:
            return "rest", 0, 0
        if len(set(values)) == 1:
            return "counter", values[0], 0
        if values == [8 * s["num_qo_heads"] * s["sum_seq_q"] for s in _SAMPLES]:
            return "stats_per_token", 0, 0
        rounding = (values[0] - nothing) // 8
        if rounding > 0 and values == [
            8 * s["num_qo_heads"] * s["batch_size"] * round_up(s["max_q_len"], rounding) + nothing
            for s in _SAMPLES
        ]:
            return "padded_stats", nothing, rounding
        raise SourceError(f"{self._op}: {name} has an unknown size: {' '.join(expression.split())}")


def _known_external_counter(sample: dict[str, int]) -> int:
    call = Call("decode", sample["num_qo_heads"], sample["batch_size"], sm_count=sample["sm_count"])
    return external_counter_bytes(call)
