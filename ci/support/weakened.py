"""Errors of synchronisation that ci/mutate plants, beside those of universalmutator's rules.

A memory order becomes relaxed, a lock is not taken, or a waiter is not woken up. All pure. Errors
that do not compile are not counted, such as the removal of a lock that a later line needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ORDER = re.compile(r"\bmemory_order(?:_|::)(?P<order>seq_cst|acq_rel|acquire|release|consume)\b")
# Without an order it is seq_cst.
_LOAD = re.compile(r"(?:\.|->)load\((?P<end>)\)")
_STORE = re.compile(r"(?:\.|->)store\([^();]+(?:\([^()]*\)[^();]*)*(?P<end>)\)")
# base/order.h. The word may be an expression with calls.
_NESTED = r"(?:[^(),]|\([^()]*\))+"
_PUBLISH = re.compile(rf"\bpublish\((?P<word>{_NESTED}), (?P<value>{_NESTED})\)")
_OBSERVE = re.compile(rf"\bobserve\((?P<word>{_NESTED})\)")
_STATEMENT = r"(?P<before>^\s*|[;{}]\s*|\)\s+|\belse\s+)(?P<statement>%s)"
_LOCK = re.compile(
    _STATEMENT % r"(?:const\s+)?std::(?:lock_guard|scoped_lock|unique_lock|shared_lock)\b[^;]*;"
)
_OBJECT = r"(?:[\w\[\]]+(?:\(\))?(?:->|\.|::))*"
_WAKES = r"(?:notify\w*|wake\w*|signal_wake|hurry|pull|ring|Ring|RingSelf|Tell)"
_WAKE = re.compile(
    _STATEMENT
    % (
        rf"(?:{_OBJECT}{_WAKES}\([^;]*\)"
        r"|(?:\[\[maybe_unused\]\] )?ssize_t \w+ = ::write\([^;]*, &\w+,[^;]*\));"
    )
)


def _orders(text: str, visible: str) -> Iterator[str]:
    for found in _ORDER.finditer(visible):
        yield text[: found.start("order")] + "relaxed" + text[found.end("order") :]
    for rule, comma in ((_LOAD, ""), (_STORE, ", ")):
        for found in rule.finditer(visible):
            if "memory_order" not in found[0]:
                end = found.start("end")
                yield text[:end] + comma + "std::memory_order_relaxed" + text[end:]
    for rule, access in (
        (_PUBLISH, r"(\g<word>).store(\g<value>, std::memory_order_relaxed)"),
        (_OBSERVE, r"(\g<word>).load(std::memory_order_relaxed)"),
    ):
        for found in rule.finditer(visible):
            yield text[: found.start()] + found.expand(access) + text[found.end() :]


def _left_out(rule: re.Pattern[str], text: str, visible: str) -> Iterator[str]:
    """Yields lines with braces in place of the statement: a lone semicolon after an `if` causes a
    warning, which is an error."""
    for found in rule.finditer(visible):
        start, end = found.span("statement")
        yield text[:start] + "{/*" + text[start:end] + "*/}" + text[end:]


def weakened(text: str, visible: str) -> list[str]:
    """Returns the replacements of a C++ line. `visible` is the line with spaces in place of
    comments and texts."""
    return [
        *_orders(text, visible),
        *_left_out(_LOCK, text, visible),
        *_left_out(_WAKE, text, visible),
    ]
