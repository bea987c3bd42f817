"""Just enough C++ reading for one launcher file: functions, blocks, size expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ws_guard.sizing.slabs import round_up


class SourceError(Exception):
    """The source says something that this reader does not understand; the text says what."""


class Function(NamedTuple):
    """A function definition: parameter names in order, and the text between its braces."""

    params: tuple[str, ...]
    body: str


def strip_comments(source: str) -> str:
    """The source without comments; string literals that contain `//` stay whole."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return token.sub(lambda m: m[0] if m[0].startswith('"') else " ", source)


def split_arguments(text: str) -> list[str]:
    """Split at top-level commas; brackets of every kind protect the commas inside.

    The sources are clang-formatted: an angle bracket beside a space is a comparison.
    """
    parts: list[str] = []
    depth, start = 0, 0
    for index, char in enumerate(text):
        before = text[index - 1 : index]
        if char in "([{" or (char == "<" and before != " "):
            depth += 1
        elif char in ")]}" or (char == ">" and before not in (" ", "-")):
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def enclosed(text: str, opening: int) -> str:
    """What stands between the bracket at `opening` and its partner."""
    pair = {"(": ")", "{": "}"}[text[opening]]
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == text[opening]:
            depth += 1
        elif text[index] == pair:
            depth -= 1
            if depth == 0:
                return text[opening + 1 : index]
    raise SourceError(f"unbalanced {text[opening]!r}")


def find_function(source: str, name: str) -> Function:
    """The definition of `name` (a call or a declaration is not one)."""
    for match in re.finditer(rf"\b{name}\s*\(", source):
        params = enclosed(source, match.end() - 1)
        rest = source[match.end() + len(params) + 1 :].lstrip()
        if rest.startswith("{"):
            names = tuple(re.findall(r"\w+", p.split("=")[0])[-1] for p in split_arguments(params))
            return Function(names, enclosed(rest, 0))
    raise SourceError(f"function {name} is not defined")


def conditions_at(body: str, position: int) -> list[str]:
    """The `if` conditions around a position, outermost first; an else branch as `!(...)`."""
    open_blocks: list[str] = []
    closed, statement = "", 0
    for index in range(position):
        char = body[index]
        if char == "{":
            header = " ".join(body[statement:index].split())
            open_blocks.append(_condition(header, closed))
            statement = index + 1
        elif char == "}":
            closed = open_blocks.pop()
            statement = index + 1
        elif char == ";":
            statement = index + 1
    return [condition for condition in open_blocks if condition]


def _condition(header: str, closed: str) -> str:
    if header == "else":
        return f"!({closed})"
    match = re.fullmatch(r"if \((.*)\)", header)
    if match:
        return match[1]
    return header


def calls(body: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Every call of `name` (a regular expression): its position and its arguments."""
    for match in re.finditer(rf"{name}\s*\(", body):
        yield match.start(), split_arguments(enclosed(body, match.end() - 1))


class Evaluator:
    """Evaluates a size expression of the launcher over given values, following its locals."""

    _REWRITES = (
        (r"(?:static|reinterpret)_cast<[^<>]*>", ""),
        (r"\b\w+\{(\d+)\}", r"\1"),
        (r"sizeof\(float2\)", "8"),
        (r"sizeof\(u?int32_t\)", "4"),
        (r"std::max", "max"),
        (r"runner_params\.mSumOfSeqLensQ", "sum_seq_q"),
    )
    _LOCAL = re.compile(r"\b(?:size_t|int64_t|int)\s+(?:const\s+)?(\w+)\s*=\s*([^;]+);")

    def __init__(self, source: str) -> None:
        self._source = source

    def value(self, expression: str, scope: str, given: Mapping[str, int]) -> int:
        """The expression's value; names come from `given`, then `scope`'s locals, then the file."""
        for pattern, replacement in self._REWRITES:
            expression = re.sub(pattern, replacement, expression)
        try:
            tree = ast.parse(" ".join(expression.split()), mode="eval").body
        except SyntaxError:
            raise SourceError(f"size expression {expression!r}") from None
        return self._node(tree, scope, given)

    def _node(self, node: ast.expr, scope: str, given: Mapping[str, int]) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node.id, scope, given)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            left = self._node(node.left, scope, given)
            right = self._node(node.right, scope, given)
            return left + right if isinstance(node.op, ast.Add) else left * right
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, [self._node(a, scope, given) for a in node.args])
        raise SourceError(f"size expression {ast.unparse(node)!r}")

    def _name(self, name: str, scope: str, given: Mapping[str, int]) -> int:
        if name in given:
            return given[name]
        for text in (scope, self._source):
            for match in self._LOCAL.finditer(text):
                if match[1] == name:
                    return self.value(match[2], scope, given)
        raise SourceError(f"size {name!r} is not defined")

    def _call(self, name: str, values: list[int]) -> int:
        if name == "max":
            return max(values)
        if name == "round_up":
            return round_up(values[0], values[1])
        function = find_function(self._source, name)
        result = re.search(r"\breturn\s+([^;]+);", function.body)
        if result is None:
            raise SourceError(f"function {name} returns nothing")
        return self.value(result[1], function.body, dict(zip(function.params, values, strict=True)))
