"""What ci/mutate plants, in which order, and what is said of it."""

import textwrap
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from support import explained, mutants, setup, stages, trials
from support.explained import Entry
from support.mutants import Line, Mutant

FILE = "csrc/base/a.cc"


def _visible(file, source):
    """What is left of a source, without the spaces."""
    return [line.visible.strip() for line in mutants.lines_of(file, textwrap.dedent(source))]


def _line(text, number=1, file=FILE):
    return Line(file, number, text, 0, text)


def _plus(lines):
    """Stands for universalmutator: + becomes -, and a parenthesis is opened."""
    return [[text.replace("+", "-"), "(" + text] for _, text in lines]


@pytest.mark.parametrize(
    ("file", "product"),
    [
        ("csrc/base/log.cc", True),
        ("csrc/reduce/loops-inl.h", True),
        ("csrc/base/log_test.cc", False),
        ("csrc/verbs/fake/fake_testing.h", False),
        ("csrc/include/ringcoll/ringcoll.h", False),
        ("ringcoll/probe/tour.py", True),
        ("ringcoll/_core.pyi", False),
        ("compat/horovod/ringcoll_bell.cc", True),
        ("compat/horovod/ringcoll_keras.py", True),
        ("tests/python/test_cli.py", False),
        ("CMakeLists.txt", False),
    ],
)
def test_errors_go_into_product_code_alone(file, product):
    assert mutants.is_product(file) == product


def test_of_cxx_the_code_is_seen():
    source = """\
    #include <x>  // for y
    #define TWO \\
      2
    /* a = b;
       c = d; */
    int a = 1'000 + '"';  // "no
    auto text = R"(int
    a;)" + b;
    static_assert(sizeof(Header) == 24);
    """
    code = ["int a = 1'000 + '\"';", "auto text =", "+ b;"]
    assert _visible(FILE, source) == code


def test_texts_of_cxx_are_not_seen():
    source = """\
    log_debug("lost {} of {}", a + 1,
              b);
    check(a < (b), Code::kInternal, "{} of {}", a - 1, b + 2);
    auto name = fmt::format("{}", a + b) + c;
    if (!mute) throw Error(Code::kTimeout, "late: " + name);
    """
    check = "check(a < (b), Code::kInternal,                       );"
    seen = [
        "check(a < (b), Code::kInternal,",
        "auto name = fmt::format(",
        "if (!mute) throw Error(",
    ]
    found = _visible(FILE, source)
    assert [line.startswith(start) for line, start in zip(found, seen, strict=True)] == [True] * 3
    assert "a - 1" not in found[0] and check[:5] in found[0]
    assert found[1].endswith(") + c;") and "a + b" not in found[1]
    assert "name" not in found[2]


def test_what_is_seen_of_a_line_is_as_long_as_the_line():
    source = 'bool failed() const { return a.load(); }  // yes\ncheck(fail(), kCode, "{}", b());\n'
    for line in mutants.lines_of(FILE, source):
        assert len(line.visible) == len(line.text), line


def test_of_python_the_code_is_seen():
    source = '''\
    """A module, 1 + 1."""
    from a import b
    def f(c: int | None = 3) -> "d":
        """Of f."""
        e = c + 1  # not 2
        ü = "é" + g(f"{c}")
    '''
    found = _visible("ringcoll/a.py", source)
    assert [line.replace(" ", "") for line in found] == ["deff(c:=3)->:", "e=c+1", "ü=+g()"]


@pytest.mark.parametrize(
    ("changed", "useful"),
    [
        ('if (a <= "b c") x();', True),
        ('if (a < "c b") x();', False),
        ('if (!(a < "b c")) x();', True),
        ('if (a < "b c") x();  ', False),
        ('if (a < "b c") x();\nbreak;', False),
        ('/*if (a < "b c") x();*/', True),
    ],
)
def test_a_change_has_to_meet_code(changed, useful):
    (line,) = mutants.lines_of(FILE, 'if (a < "b c") x();')
    assert mutants.is_useful(line, changed) == useful


@pytest.mark.parametrize(
    ("text", "changed", "useful"),
    [
        ("std::vector<int> a;", "std::vector>int> a;", False),
        ("std::vector<int> a;", "std::vector<=int> a;", False),
        ("const Step& step = b;", "const Step| step = b;", False),
        ("a->b();", "a==b();", False),
        ("if (a < b) c();", "if (a <= b) c();", True),
        ("a = b * c;", "a = b + c;", True),
        ("if (!a) c();", "if (a) c();", True),
        ("for (;; ++a) c();", "for (;; --a) c();", True),
        ("a = min(b, c);", "a = max(b, c);", True),
        ("a = remaining;", "a = remaxing;", False),
    ],
)
def test_what_cannot_compile_is_let_be(text, changed, useful):
    assert mutants.is_useful(_line(text), changed) == useful


@pytest.mark.parametrize(
    ("text", "useful"),
    [
        ("  std::vector<int> a, b;", False),
        ("  const Step& step = steps[0];", False),
        ("  return a;", False),
        ("  return;", True),
        ("  if (a < b) {", False),
        ("  if (a < b) return c;", True),
        ("  throw b;", True),
        ("  a = b;", True),
        ("  a->b(c);", True),
    ],
)
def test_a_line_is_taken_out_where_the_rest_can_do_without(text, useful):
    assert mutants.is_useful(_line(text), f"  /*{text.strip()}*/") == useful


def test_the_order_is_that_of_the_seed_and_not_of_the_lines():
    lines = [_line(f"a{number} + b", number) for number in range(50)]
    order = mutants.in_order(lines, 7)
    assert order != lines
    assert mutants.in_order(lines[::-1], 7) == order
    assert mutants.in_order(lines, 8) != order
    fewer = [line for line in lines if line.number != 3]
    assert mutants.in_order(fewer, 7) == [line for line in order if line.number != 3]


def test_each_layer_has_its_share_of_any_start():
    sizes = {"csrc/coll/a.cc": 60, "csrc/base/a.cc": 30, "ringcoll/probe/a.py": 10}
    lines = [_line(f"a{n} + b", n, file) for file, size in sizes.items() for n in range(size)]
    for first in (10, 20, 50):
        files = [line.file for line in mutants.in_order(lines, 1)[:first]]
        for file, size in sizes.items():
            assert abs(files.count(file) - first * size / 100) <= 1, (first, file)


def test_one_error_for_each_line_that_has_one():
    lines = [_line("a + b;", 1), _line("c;", 2), _line("d + e;", 3)]
    sources = {FILE: ""}
    found = list(mutants.planted(lines, 1, _plus, sources))
    assert [mutant.line.number for mutant in found] == [1, 2, 3]
    assert found == list(mutants.planted(lines, 1, _plus, sources))


def _weaker(text):
    """What the rules of synchronisation make of a line."""
    (line,) = mutants.lines_of(FILE, text)
    return [mutant.changed for mutant in mutants.candidates(line, [])[1]]


@pytest.mark.parametrize(
    ("text", "weaker"),
    [
        ("a.load(std::memory_order_acquire);", ["a.load(std::memory_order_relaxed);"]),
        ("a.load(std::memory_order::seq_cst);", ["a.load(std::memory_order::relaxed);"]),
        ("a.load(std::memory_order_relaxed);", []),
        ("x = a->load();", ["x = a->load(std::memory_order_relaxed);"]),
        ("a.store(b(1) + 2);", ["a.store(b(1) + 2, std::memory_order_relaxed);"]),
        ("a.store(b, std::memory_order_relaxed);", []),
        (
            "a.compare_exchange_strong(b, c, std::memory_order_acq_rel, std::memory_order_acquire)",
            [
                "a.compare_exchange_strong(b, c, std::memory_order_relaxed, "
                "std::memory_order_acquire)",
                "a.compare_exchange_strong(b, c, std::memory_order_acq_rel, "
                "std::memory_order_relaxed)",
            ],
        ),
        ("int a;  // memory_order_acquire", []),
        ("publish(*a, b(1) + 2);", ["(*a).store(b(1) + 2, std::memory_order_relaxed);"]),
        ("a = observe(b(c)->d) - e(f);", ["a = (b(c)->d).load(std::memory_order_relaxed) - e(f);"]),
    ],
)
def test_an_order_of_memory_is_relaxed(text, weaker):
    assert _weaker(text) == weaker


@pytest.mark.parametrize(
    ("text", "weaker"),
    [
        ("  std::lock_guard lock(mutex_);", ["  {/*std::lock_guard lock(mutex_);*/}"]),
        ("std::unique_lock<std::mutex> a(b);", ["{/*std::unique_lock<std::mutex> a(b);*/}"]),
        (
            "{ const std::scoped_lock a(b, c); d(); }",
            ["{ {/*const std::scoped_lock a(b, c);*/} d(); }"],
        ),
        ("void f(std::unique_lock<std::mutex>& lock);", []),
        ("// std::lock_guard lock(mutex_);", None),
    ],
)
def test_a_lock_is_not_taken(text, weaker):
    if weaker is None:
        assert mutants.lines_of(FILE, text) == []
    else:
        assert _weaker(text) == weaker


@pytest.mark.parametrize(
    ("text", "weaker"),
    [
        ("  a->b_.notify_all();", ["  {/*a->b_.notify_all();*/}"]),
        ("if (c) channels_[peer]->wake();", ["if (c) {/*channels_[peer]->wake();*/}"]),
        ("if (c()) table().d.notify_one();", ["if (c()) {/*table().d.notify_one();*/}"]),
        ("void wake() override { a.wake(); }", ["void wake() override { {/*a.wake();*/} }"]),
        ("  a.b->pull(c->d);  // e", ["  {/*a.b->pull(c->d);*/}  // e"]),
        (
            "[[maybe_unused]] ssize_t put = ::write(a.get(), &one, sizeof one);",
            ["{/*[[maybe_unused]] ssize_t put = ::write(a.get(), &one, sizeof one);*/}"],
        ),
        ("ssize_t put = ::write(a, text.data(), text.size());", []),
        ("void wake();", []),
        ("bool woken = wake(a);", []),
    ],
)
def test_a_waiter_is_not_woken(text, weaker):
    assert _weaker(text) == weaker


def test_a_line_has_errors_of_synchronisation_beside_others():
    lines = [_line("a + b.load();", number) for number in range(1, 3)]
    seeds = range(20)
    found = [next(mutants.planted(lines, seed, _plus, {FILE: ""})) for seed in seeds]
    weaker = [mutants.is_weaker(mutant) for mutant in found]
    assert 0 < sum(weaker) < len(weaker)
    changed = "a + b.load(std::memory_order_relaxed);"
    assert {mutant.changed for mutant in found if mutants.is_weaker(mutant)} == {changed}
    alone = mutants.planted([*lines, _line("a + b;")], 1, _plus, {FILE: ""}, weaker=True)
    assert [mutant.changed for mutant in alone] == [changed] * 2


def test_an_error_of_synchronisation_can_be_explained():
    entry = Entry(FILE, "a.load();", "a.load(std::memory_order_relaxed);", "equivalent", "why")
    assert explained.stale([entry], {FILE: "a.load();\n"}, _plus, []) == []


def test_python_that_does_not_parse_is_not_planted():
    source = "a = b + c\n"
    (line,) = mutants.lines_of("ringcoll/a.py", source)
    for seed in range(4):
        (found,) = mutants.planted([line], seed, _plus, {"ringcoll/a.py": source})
        assert found.changed == "a = b - c"


def test_an_error_is_applied_to_its_line():
    source = "int a;\n  b = c + d;\n}\n"
    line = mutants.lines_of(FILE, source)[1]
    mutant = Mutant(line, "  b = c - d;")
    assert mutant.applied(source) == "int a;\n  b = c - d;\n}\n"
    assert mutants.difference(mutant) == "b = c [-+-]{+-+} d;"
    assert mutants.difference(Mutant(_line("if (max(a))"), "if (min(a))")) == (
        "if ([-max-]{+min+}(a))"
    )


def test_an_error_keeps_its_name_when_lines_move():
    source = "a + b;\nc;\na + b;\n"
    first, _, second = (Mutant(line, "x").id for line in mutants.lines_of(FILE, source))
    moved = [Mutant(line, "x").id for line in mutants.lines_of(FILE, "d;\n\n" + source)]
    assert first != second
    assert (first, second) == (moved[1], moved[3])


ENTRY = Entry(FILE, "a + b;", "a - b;", "equivalent", "b is 0")


def test_explanations_are_read(tmp_path):
    path = tmp_path / "explained.toml"
    path.write_text(
        f"[[mutant]]\nfile = '{FILE}'\nline = 'a + b;'\nchanged = 'a - b;'\n"
        "kind = 'equivalent'\nwhy = 'b is 0'\n"
    )
    assert explained.read(path) == [ENTRY]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("file = 'a'", "missing"),
        ("file='a'\nline='b'\nchanged='c'\nkind='same'\nwhy='d'", "kind has to be one of"),
        ("file='a'\nline='b'\nchanged='c'\nkind='equivalent'\nwhy=''", "why a text"),
        ("file='a'\nline='b'\nchanged='c'\nkind='equivalent'\nwhy='d'\nx=1", "unexpected"),
    ],
)
def test_a_bad_explanation_is_named(tmp_path, rows, why):
    path = tmp_path / "explained.toml"
    path.write_text("[[mutant]]\n" + rows)
    with pytest.raises(ValueError, match=rf"explained.toml: entry 1.*{why}"):
        explained.read(path)


def test_an_explanation_is_found_when_lines_move():
    line = mutants.lines_of(FILE, "\n\n   a + b;\n")[0]
    assert explained.entry_of(Mutant(line, "   a - b;"), [ENTRY]) == ENTRY
    assert explained.entry_of(Mutant(line, "   a * b;"), [ENTRY]) is None


def test_what_is_explained_is_there():
    """ci/mutate looks whether it can be planted, but is run seldom."""
    entries = explained.read(setup.CI / "mutants-explained.toml")
    files = {entry.file for entry in entries}
    sources = {file: (stages.ROOT / file).read_text() for file in files}
    lines = {file: [line.strip() for line in text.splitlines()] for file, text in sources.items()}
    assert not [str(entry) for entry in entries if entry.line.strip() not in lines[entry.file]]


def test_what_is_equivalent_does_not_count():
    lived = [Mutant(_line("a + b;", 1), "a - b;"), Mutant(_line("c + d;", 2), "c - d;")]
    tally = explained.tally(3, lived, [ENTRY])
    assert (tally.equivalent, tally.unnoticed, tally.unexplained) == (1, 0, lived[1:])
    assert tally.share == 3 / 4
    otherwise = Entry(FILE, "a + b;", "a - b;", "unnoticed", "nobody looks")
    assert explained.tally(3, lived, [otherwise]).share == 3 / 5
    assert explained.tally(0, [], []).share == 1


UNEXPLAINED = Mutant(_line("c + d;", 2), "c - d;")


@pytest.mark.parametrize(
    ("noticed", "unnoticed", "unexplained", "stale", "why"),
    [
        (9, 1, [], [], []),
        (0, 0, [], [], []),
        (8, 1, [], [], ["90% are wanted"]),
        (99, 0, [UNEXPLAINED], [], ["x.toml does not say why 1 lived"]),
        (1, 0, [UNEXPLAINED], [], ["x.toml does not say why 1 lived", "90% are wanted"]),
        (9, 1, [], ["a line: it is gone"], ["x.toml: a line: it is gone"]),
    ],
)
def test_what_is_not_good_enough_is_said(noticed, unnoticed, unexplained, stale, why):
    tally = explained.Tally(noticed, 5, unnoticed, unexplained)
    assert explained.objections(tally, stale, "x.toml") == why


class Shop:
    """Stands for trials.Workshop: of the errors that are tried, `lived` say which live."""

    sources = {FILE: "a + b;\nc + d;\n" + "".join(f"e{i} + f;\n" for i in range(20))}  # noqa: RUF012
    lived: set[str] = set()  # noqa: RUF012

    def __init__(self, *_, **__):
        pass

    def known(self, _):
        return None

    def attempt(self, mutant):
        lives = mutant.line.text in self.lived
        return trials.Result(trials.LIVED if lives else trials.NOTICED, seconds=1)


@pytest.mark.parametrize(
    ("lived", "entries", "status"),
    [
        (set(), [], 0),
        ({"a + b;"}, [ENTRY], 0),  # of which nobody could notice it
        ({"c + d;"}, [], 1),  # though 21 of 22 were noticed
        ({"c + d;", "a + b;"}, [ENTRY], 1),
        (set(), [ENTRY], 1),  # noticed, though an entry says that nobody does
    ],
)
def test_the_exit_status_tells(monkeypatch, capsys, lived, entries, status):
    loader = SourceFileLoader("mutate", str(setup.CI / "mutate"))
    mutate = module_from_spec(spec_from_loader("mutate", loader))
    loader.exec_module(mutate)
    monkeypatch.setattr(Shop, "lived", lived)
    monkeypatch.setattr(trials, "RECORD", stages.ROOT / "record.json")
    for name, stand_in in {
        "Workshop": Shop,
        "_rewrite": _plus,
        "_arguments": lambda: Namespace(
            jobs=1, again=False, list=False, sample=100, seed=1, only=None, weaker=False
        ),
    }.items():
        monkeypatch.setattr(mutate, name, stand_in)
    for module, name, stand_in in [
        (setup, "prepare", lambda _: None),
        (setup, "mutator", lambda: None),
        (explained, "read", lambda _: entries),
    ]:
        monkeypatch.setattr(module, name, stand_in)
    assert mutate.body() == status
    said = capsys.readouterr().out
    assert ("FAILED: " in said) == (status != 0), said


@pytest.mark.parametrize(
    ("source", "noticed", "why"),
    [
        ("\n a + b;\n", [], None),
        ("a + c;\n", [], "there is no such line"),
        ("", [], "there is no such line"),
        ("a + b;\n", [Mutant(_line("a + b;"), "a - b;")], "a test notices it now"),
    ],
)
def test_an_explanation_of_nothing_is_stale(source, noticed, why):
    found = explained.stale([ENTRY], {FILE: source}, _plus, noticed)
    assert len(found) == (why is not None)
    assert not found or why in found[0]
