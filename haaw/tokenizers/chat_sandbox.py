"""The Jinja2 sandbox that chat templates run in: what a template may reach, and how much it may use.

Imports jinja2, so it is itself imported where a template is first used. A template comes from a stranger's
file. Out of its reach: attributes with leading underscores, anything that changes an object, modules. Bounded:
loop and macro turns, processor time (looked at on each turn), the length of any text or list it builds, ranges,
widths and powers. Not bounded: time inside a single call of a filter on values within those sizes (at worst
some seconds).
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_OUTPUT_CHARS = 10_000_000
MOST_ITEMS = 1_000_000
MOST_TURNS = 100_000
MOST_SECONDS = 5.0
LARGEST_ARGUMENT = 100_000

# The thread's processor time: on a machine that is busy elsewhere an honest template must not be refused.
_clock_s = getattr(time, "thread_time", time.process_time)

_WIDENING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_WIDE_FIELD = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")
_WIDE_DATE = re.compile(r"%[-_0^#]*\d{3}")


class TemplateRefusal(TemplateError):  # noqa: N818 (it is the template's decision, not a fault)
    """The template itself said that these messages are not to its liking (`raise_exception`)."""


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates expect, with budgets.

    As Hugging Face transformers sets it up: trim_blocks, lstrip_blocks, loop controls, the `generation` tag,
    `raise_exception`, `strftime_now`, and a `tojson` that does not escape HTML.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            optimized=False,  # folding constants would run them while compiling, before any budget
            cache_size=0,
        )
        self.code_generator_class = _BoundedGenerator
        self._budget = threading.local()
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = self._bounded_filter(name, function)
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    def start(self, now: datetime) -> None:
        """Begin a render that happens at the time `now`: all budgets anew."""
        self._budget.now = now
        self._budget.turns = 0
        self._budget.ends_s = _clock_s() + MOST_SECONDS

    def tick(self) -> str:
        """One turn of a loop or a macro; the compiled template calls it."""
        self._budget.turns += 1
        if self._budget.turns > MOST_TURNS or _clock_s() > self._budget.ends_s:
            raise SecurityError(
                f"it loops for more than {MOST_TURNS} turns or {MOST_SECONDS:.0f} s of processor time"
            )
        return ""

    def joined(self, pieces: Iterable[Any]) -> str:
        """The `~` operator, bounded."""
        return self.concat([str(piece) for piece in pieces])

    def concat(self, pieces: Iterable[str]) -> str:
        """Join output, bounded; Jinja2 uses it for the whole text, macros and block assignments."""
        kept = []
        length = 0
        for piece in pieces:
            length += len(piece)
            _refuse_long(length)
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*`, `**` and `%`, refused where the result would be out of proportion."""
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _refuse_large(left, len(left) + len(right))
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if hasattr(sequence, "__len__") and isinstance(times, int):
                    _refuse_large(sequence, len(sequence) * times)
            _refuse_huge_number(left, right)
        elif operator == "**":
            if not isinstance(right, int | float) or abs(right) > 64:
                raise SecurityError("it raises to a power above 64")
            _refuse_huge_number(left, right)
        elif operator == "%" and isinstance(left, str):
            _refuse_wide(left)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja2's own rule, and no method that pads a text to a given width."""
        if isinstance(obj, str) and attr in _WIDENING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuse at once: Jinja2's undefined value would print as nothing."""
        raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}, which is out of bounds")

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method from a template, its arguments and result bounded."""
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja2 wraps str.format in a function of its own
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _refuse_text_call(owner, getattr(__obj, "__name__", ""), args)
        _refuse_numbers([*args, *kwargs.values()])
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        for block in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            call = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            block.body.insert(0, nodes.ExprStmt(call, lineno=block.lineno))  # type: ignore[attr-defined]
        tree.set_environment(self)
        return tree

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            values = [*args, *kwargs.values()]
            _refuse_numbers(values)
            texts = [value for value in values if isinstance(value, str)]
            if name == "replace" and len(texts) >= 3:
                _refuse_text_call(texts[0], "replace", texts[1:])
            elif name == "format" and texts:
                _refuse_wide(texts[0])
            elif name == "join":
                return _bounded_join(function, args, kwargs)
            return _bounded(function(*args, **kwargs))

        return bounded

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > 200 or _WIDE_DATE.search(pattern):
            raise SecurityError("it asks for a date of unreasonable width")
        now: datetime = self._budget.now
        return now.strftime(pattern)


class GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks what the model says; here it only passes through."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The nodes between the tags, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _BoundedGenerator(CodeGenerator):
    """Compiles `a ~ b` into a call of the sandbox, since Jinja2 would join without asking."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(str(message)[:2000])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _refuse_large(value, len(value))
    return value


def _bounded_join(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`join` with its result's length known before it is made."""
    context, items, *rest = args
    items = list(items) if not isinstance(items, str | Mapping) else items
    separator = rest[0] if rest else kwargs.get("d", "")
    texts = sum(len(item) if isinstance(item, str) else 32 for item in items)
    _refuse_long(texts + len(items) * len(str(separator)))
    return _bounded(function(context, items, *rest, **kwargs))


def _refuse_text_call(owner: str, method: str, args: Iterable[Any]) -> None:
    values = list(args)
    if method in ("format", "format_map"):
        _refuse_wide(owner)
    elif method == "replace" and len(values) >= 2 and all(isinstance(value, str) for value in values[:2]):
        times = owner.count(values[0]) if values[0] else len(owner) + 1
        _refuse_long(len(owner) + times * len(values[1]))
    elif method == "join" and values and hasattr(values[0], "__len__"):
        texts = sum(len(item) for item in values[0] if isinstance(item, str))
        _refuse_long(texts + len(values[0]) * len(owner))


def _refuse_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST_ARGUMENT:
            raise SecurityError(f"it passes the number {value:.3g} to a function, above {LARGEST_ARGUMENT}")


def _refuse_huge_number(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise SecurityError("it computes with numbers of more than 4,096 bits")


def _refuse_wide(pattern: str) -> None:
    if _WIDE_FIELD.search(pattern):
        raise SecurityError("it formats with an unreasonable width")


def _refuse_large(like: Any, size: int) -> None:
    if isinstance(like, str):
        _refuse_long(size)
    elif size > MOST_ITEMS:
        raise SecurityError(f"it builds a list of more than {MOST_ITEMS} items")


def _refuse_long(length: int) -> None:
    if length > MOST_OUTPUT_CHARS:
        raise SecurityError(f"it builds a text of more than {MOST_OUTPUT_CHARS} characters")
