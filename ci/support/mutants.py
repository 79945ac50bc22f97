"""Which errors ci/mutate plants, and in which order. All pure; what rewrites a line is passed in.

What is left out, for no test could notice it or every compiler would:
- comments, includes and other lines of the preprocessor, imports, annotations of Python;
- texts: string literals, what is formatted into them (fmt::format, the arguments of check() and
  its like from the text on) and all of a line of the log;
- declarations that a compiler alone reads (static_assert, using, friend, "= delete" and so on), and
  what @dataclass is told: guards against who changes the code;
- capacity that is reserved: speed alone;
- operators of C++ without spaces around them, which are brackets of templates, references and
  pointers: another one does not compile;
- to take out a declaration, the head of a block or the value that is returned: likewise;
- what makes a new name of half a name (min in "remaining"): nobody knows it;
- a `break` or `continue` behind a line (universalmutator's rule for every line): outside of loops
  it does not compile, at the end of one it changes nothing.
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

# [(language, line)] -> for each the lines that may stand in its place (support/rewrite.py).
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
# Two words side by side begin a declaration, or a return of a value.
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
    visible: str  # the text, with spaces where nothing is worth changing

    @property
    def layer(self) -> str:
        first, second = PurePath(self.file).parts[:2]
        return second if first == "csrc" else first


@dataclass(frozen=True)
class Mutant:
    """An error: `changed` stands in the place of the line."""

    line: Line
    changed: str

    @property
    def id(self) -> str:
        """Stays as it is where lines above come or go."""
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
    """Whether errors are planted in a file of this path."""
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
    """`text` with spaces in the spans; its lines stay."""
    for start, end in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _end_of_call(code: str, opening: int) -> int:
    """Behind the parenthesis that closes the one at `opening`; literals are blank already."""
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
    """The lines of a file in which an error can be worth planting."""
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
    """Shuffled by hashes, so that a change elsewhere leaves the order of the others; as many lines
    from the start as one wants have of every layer its share."""
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
    """How many letters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _common(one: str, other: str) -> tuple[int, int]:
    """How many letters at the start, and of the rest at the end, two texts share."""
    start = _alike(one, other)
    return start, _alike(one[start:][::-1], other[start:][::-1])


def _operators_at(text: str) -> int:
    """How many letters of operators a text begins with."""
    return len(text) - len(text.lstrip(_OPERATORS))


def _is_bracket(text: str, start: int, end: int) -> bool:
    """Whether what is changed is no operator of arithmetic: vector<int>, Step& and a->b."""
    if text[start:end].strip(_OPERATORS):
        return False
    start -= _operators_at(text[:start][::-1])
    end += _operators_at(text[end:])
    operator, spaced = text[start:end], text[start - 1 : start] == text[end : end + 1] == " "
    return operator == "->" or (set(operator) <= set("<>*&") and operator != "" and not spaced)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _is_broken(line: Line, changed: str) -> bool:
    """Whether it can be seen that nothing can be done with the line any more."""
    if _words(changed) - _words(line.text) - _NEW_WORDS:
        return True
    if language(line.file) != "c++":
        return False
    if changed.strip().startswith("/*"):
        return bool(_NEEDED.search(line.visible))
    start, end = _common(line.text, changed)
    return _is_bracket(line.text, start, len(line.text) - end)


def is_useful(line: Line, changed: str) -> bool:
    """Whether the change meets code that does something."""
    text = line.text
    if _ADDED_JUMP.search(changed) or changed.split() == text.split():
        return False
    start, end = _common(text, changed)
    touched = line.visible[start : len(text) - end]
    if start + end == len(text):  # what is put between two letters belongs to them
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
    """What may be planted in a line: of the `changes` that universalmutator makes those that are
    useful, and errors of synchronisation."""
    general = [Mutant(line, text) for text in changes if is_useful(line, text)]
    if language(line.file) == "python":
        return general, []
    return general, [Mutant(line, text) for text in weakened(line.text, line.visible)]


def is_weaker(mutant: Mutant) -> bool:
    """Whether the error is one of synchronisation."""
    return mutant in candidates(mutant.line, [])[1]


def planted(
    lines: Sequence[Line],
    seed: int,
    rewrite: Rewrite,
    sources: dict[str, str],
    *,
    weaker: bool = False,
) -> Iterator[Mutant]:
    """One error in each line that has one, in the order of the lines. A line with both kinds has an
    error of synchronisation for every second seed. With `weaker`, there are no others."""
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
    """The line with what goes and what comes: "if (a [-<-]{+<=+} b)", by whole words."""
    old, new = mutant.line.text, mutant.changed
    start, end = _common(old, new)
    start = len(re.sub(r"\w+$", "", old[:start]))
    end = len(re.sub(r"^\w+", "", old[len(old) - end :]))
    before, after = old[:start], old[len(old) - end :]
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    marks = (f"[-{gone}-]" if gone else "") + (f"{{+{come}+}}" if come else "")
    return " ".join(f"{before}{marks}{after}".split())
