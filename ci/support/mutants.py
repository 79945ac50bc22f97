"""Which errors ci/mutate plants, and in which order. All pure; the function that rewrites a line is
passed in.

Some errors are left out, because no test could notice them or every compiler would:
- in comments, includes and other lines of the preprocessor, imports, annotations of Python;
- in texts: string literals, what is formatted into them (fmt::format, the arguments of check() and
  similar functions from the text on), and complete log lines;
- in declarations that only a compiler reads (static_assert, using, friend, "= delete" and so on),
  and in arguments of @dataclass, which guard against wrong code;
- in reserved capacity, which concerns only speed;
- in operators of C++ without spaces around them: they are brackets of templates, references and
  pointers, and another operator does not compile;
- removal of a declaration, of the head of a block or of a returned value, which does not compile;
- a new name made from part of a name (min in "remaining"), which does not exist;
- a `break` or `continue` behind a line (universalmutator's rule for every line): outside of loops
  it does not compile, and at the end of one it changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath

from support.weakened import weakened

# [(language, line)] -> for each line, its replacements (support/rewrite.py).
Rewrite = Callable[[list[tuple[str, str]]], list[list[str]]]
_BATCH = 100

_CXX_LITERAL = re.compile(
    r"""(?P<mute>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<text>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*")
      | (?P<letter>'(?:\\[^\n']+|\\'|[^'\\\n])')""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_WHOLE_CALL = re.compile(r"\blog_(?:debug|info|warning|line)(?=\()")
_ARGUMENTS = re.compile(r"\bfmt::format(?=\()")
_FROM_TEXT_ON = re.compile(r"\b(?:check|invariant|require|fail\w*|Error)(?=\()")
_CXX_IDLE = re.compile(
    r"= delete;|\bstatic_assert\b|\.reserve\("
    r"|^\s*(?:using|friend|template|namespace|public:|private:|protected:|extern)"
)
_PYTHON_IDLE = re.compile(r"^\s*(?:import|from|@dataclass)\b|\bTYPE_CHECKING\b|\b__all__\b")
_OPERATORS = "<>*&=!+-/%|^"
# Two words side by side begin a declaration or return a value.
_NEEDED = re.compile(
    r"^\s*(?!throw|delete|else|case)(?:[\w:]+(?:<.*>)?[*&]*\s+)+[*&]*\w+\s*(?:[=;,({\[]|$)|\{\s*$"
)
_NEW_WORDS = {"min", "max", "begin", "end", "any_of", "all_of", "none_of", "if", "while"}
_NEW_WORDS |= {"True", "False", "None", "pass", "not", "and", "or", "break", "continue"}
_ADDED_JUMP = re.compile(r"\n\s*(?:break|continue);$")


@dataclass(frozen=True)
class Line:
    """A line of product code. `nth` counts equal lines of a file, from 0."""

    file: str
    number: int
    text: str
    nth: int
    visible: str  # the text, with spaces where no error is planted

    @property
    def layer(self) -> str:
        first, second = PurePath(self.file).parts[:2]
        return second if first == "csrc" else first


@dataclass(frozen=True)
class Mutant:
    """A planted error: `changed` replaces the line."""

    line: Line
    changed: str

    @property
    def id(self) -> str:
        """Does not change when lines above come or go."""
        return _digest(self.line.file, self.line.text, str(self.line.nth), self.changed)[:8]

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        lines[self.line.number - 1] = self.changed
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.line.file}:{self.line.number} {self.id} {difference(self)}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def is_product(file: str) -> bool:
    """True if errors are planted in a file with this path."""
    path = PurePath(file)
    if path.suffix == ".py":
        return path.parts[0] in ("ringcoll", "compat")
    in_layer = path.parts[0] in ("csrc", "compat") and path.parts[1] != "include"
    return (
        in_layer and path.suffix in (".cc", ".h") and not path.stem.endswith(("_test", "testing"))
    )


def language(file: str) -> str:
    return "python" if file.endswith(".py") else "c++"


def _blank(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Returns `text` with spaces in the spans; line breaks stay."""
    for start, end in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _end_of_call(code: str, opening: int) -> int:
    """Returns the index behind the parenthesis that closes the one at `opening`. Literals must be
    blanked out."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place + 1
    return len(code)


def _visible_cxx(source: str) -> str:
    literals = list(_CXX_LITERAL.finditer(source))
    code = _blank(source, (found.span() for found in literals))
    texts = [found.start() for found in literals if found["text"] is not None]
    spans = [found.span() for found in literals if found["letter"] is None]
    for call in _WHOLE_CALL.finditer(code):
        spans.append((call.start(), _end_of_call(code, call.end()) + 1))
    for call in _ARGUMENTS.finditer(code):
        spans.append((call.end() + 1, _end_of_call(code, call.end()) - 1))
    for call in _FROM_TEXT_ON.finditer(code):
        end = _end_of_call(code, call.end())
        first = next((text for text in texts if call.end() < text < end), end - 1)
        spans.append((first, end - 1))
    return _blank(source, spans)


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        wanted = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        yield from (found for found in wanted if isinstance(found, ast.expr))


def _visible_python(source: str) -> str:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.STRING, tokenize.COMMENT)
    ]
    lines = source.splitlines(keepends=True)

    def place(number: int, byte: int) -> int:  # ast counts bytes of UTF-8
        return starts[number - 1] + len(lines[number - 1].encode()[:byte].decode())

    for found in _annotations(ast.parse(source)):
        end = place(found.end_lineno or found.lineno, found.end_col_offset or 0)
        spans.append((place(found.lineno, found.col_offset), end))
    return _blank(source, spans)


def lines_of(file: str, source: str) -> list[Line]:
    """Returns the lines of a file that are worth an error."""
    python = language(file) == "python"
    visible = (_visible_python if python else _visible_cxx)(source).split("\n")
    idle = _PYTHON_IDLE if python else _CXX_IDLE
    seen: Counter[str] = Counter()
    found = []
    for number, text in enumerate(source.split("\n"), 1):
        left = visible[number - 1]
        if re.search(r"\w", left) and not idle.search(left):
            found.append(Line(file, number, text, seen[text], left))
        seen[text] += 1
    return found


def in_order(lines: Iterable[Line], seed: int) -> list[Line]:
    """Shuffles lines by hashes, so that a change elsewhere keeps the order of the others. In any
    first part of the result, every layer has its share."""
    layers: dict[str, list[Line]] = {}
    for line in lines:
        layers.setdefault(line.layer, []).append(line)
    placed: list[tuple[float, str, Line]] = []
    for layer, members in layers.items():
        members.sort(key=lambda line: _digest(str(seed), line.file, line.text, str(line.nth)))
        first = int(_digest(str(seed), layer)[:8], 16) / 16**8
        places = ((first + index) / len(members) for index in range(len(members)))
        placed += zip(places, [layer] * len(members), members, strict=True)
    return [line for *_, line in sorted(placed, key=lambda item: item[:2])]


def _alike(one: str, other: str) -> int:
    """Returns the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _common(one: str, other: str) -> tuple[int, int]:
    """Returns the length of the common prefix, and of the common suffix of the remainders."""
    start = _alike(one, other)
    return start, _alike(one[start:][::-1], other[start:][::-1])


def _operators_at(text: str) -> int:
    """Returns how many operator letters a text begins with."""
    return len(text) - len(text.lstrip(_OPERATORS))


def _is_bracket(text: str, start: int, end: int) -> bool:
    """True if the change is not in an arithmetic operator: vector<int>, Step& and a->b."""
    if text[start:end].strip(_OPERATORS):
        return False
    start -= _operators_at(text[:start][::-1])
    end += _operators_at(text[end:])
    operator, spaced = text[start:end], text[start - 1 : start] == text[end : end + 1] == " "
    return operator == "->" or (set(operator) <= set("<>*&") and operator != "" and not spaced)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _is_broken(line: Line, changed: str) -> bool:
    """True if the changed line can obviously not work."""
    if _words(changed) - _words(line.text) - _NEW_WORDS:
        return True
    if language(line.file) != "c++":
        return False
    if changed.strip().startswith("/*"):
        return bool(_NEEDED.search(line.visible))
    start, end = _common(line.text, changed)
    return _is_bracket(line.text, start, len(line.text) - end)


def is_useful(line: Line, changed: str) -> bool:
    """True if the change meets code that has an effect."""
    text = line.text
    if _ADDED_JUMP.search(changed) or changed.split() == text.split():
        return False
    start, end = _common(text, changed)
    touched = line.visible[start : len(text) - end]
    if start + end == len(text):  # an insertion belongs to the letters on both sides
        touched = line.visible[max(0, start - 1) : start + 1]
    return bool(touched.strip()) and not (
        language(line.file) == "c++" and _is_broken(line, changed)
    )


def _parses(mutant: Mutant, source: str) -> bool:
    if language(mutant.line.file) != "python":
        return True
    try:
        ast.parse(mutant.applied(source))
    except SyntaxError:
        return False
    return True


def candidates(line: Line, changes: Iterable[str]) -> tuple[list[Mutant], list[Mutant]]:
    """Returns the errors for a line: the useful ones of universalmutator's `changes`, and the
    errors of synchronisation."""
    general = [Mutant(line, text) for text in changes if is_useful(line, text)]
    if language(line.file) == "python":
        return general, []
    return general, [Mutant(line, text) for text in weakened(line.text, line.visible)]


def is_weaker(mutant: Mutant) -> bool:
    """True if it is an error of synchronisation."""
    return mutant in candidates(mutant.line, [])[1]


def planted(
    lines: Sequence[Line],
    seed: int,
    rewrite: Rewrite,
    sources: dict[str, str],
    *,
    weaker: bool = False,
) -> Iterator[Mutant]:
    """Yields one error for each line that can have one, in the order of the lines. A line with both
    kinds gets an error of synchronisation for about every second seed. With `weaker`, only errors
    of synchronisation count."""
    remaining = iter(lines)
    while batch := list(islice(remaining, _BATCH)):
        offered = rewrite([(language(line.file), line.text) for line in batch])
        for line, changes in zip(batch, offered, strict=True):
            kinds = [kind for kind in candidates(line, changes)[weaker:] if kind]
            kinds.sort(key=lambda kind: _digest(str(seed), kind[0].id))
            for kind in kinds:
                mutants = [mutant for mutant in kind if _parses(mutant, sources[line.file])]
                if mutants:
                    yield min(mutants, key=lambda mutant: _digest(str(seed), mutant.id))
                    break


def difference(mutant: Mutant) -> str:
    """Shows the change by whole words: "if (a [-<-]{+<=+} b)"."""
    old, new = mutant.line.text, mutant.changed
    start, end = _common(old, new)
    start = len(re.sub(r"\w+$", "", old[:start]))
    end = len(re.sub(r"^\w+", "", old[len(old) - end :]))
    before, after = old[:start], old[len(old) - end :]
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    marks = (f"[-{gone}-]" if gone else "") + (f"{{+{come}+}}" if come else "")
    return " ".join(f"{before}{marks}{after}".split())
