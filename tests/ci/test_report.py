"""Counting results: GoogleTest's and pytest's XML, a program that died, and expected skips."""

from support import report

GTEST = """<?xml version="1.0"?>
<testsuites tests="4"><testsuite name="Ring">
 <testcase name="adds" classname="Ring" status="run" result="completed" time="0.1"/>
 <testcase name="kept_back" classname="Ring" status="notrun" result="suppressed" time="0"/>
 <testcase name="fails" classname="Ring" status="run" result="completed" time="0">
  <failure message="1 is not 2" type=""/></testcase>
 <testcase name="waits" classname="Ring" status="run" result="skipped" time="0">
  <skipped message="no NIC"/></testcase>
</testsuite></testsuites>"""

PYTEST = """<testsuites><testsuite name="pytest">
 <testcase classname="tests.a" name="test_good"/>
 <testcase classname="tests.a" name="test_error"><error message="no fixture">...</error></testcase>
 <testcase classname="tests.a" name="test_skip"><skipped message="no mpirun"/></testcase>
</testsuite></testsuites>"""


def _read(tmp_path, text):
    path = tmp_path / "result.xml"
    path.write_text(text)
    return report.read_xml(path, "part")


def test_gtest_xml(tmp_path):
    found = _read(tmp_path, GTEST)
    assert found.passed == 1
    assert found.failed == {"Ring.fails": "1 is not 2"}
    assert found.skipped == {"Ring.waits": "no NIC"}


def test_pytest_xml(tmp_path):
    found = _read(tmp_path, PYTEST)
    assert found.passed == 1
    assert found.failed == {"tests.a.test_error": "no fixture"}
    assert found.skipped == {"tests.a.test_skip": "no mpirun"}


def test_a_long_failure_is_told_to_its_end(tmp_path):
    """As pytest writes it, whose message breaks off before the cause."""
    text = "    def test():\n>       assert job()\n"
    text += "".join(f"E       line {i}\n" for i in range(200))
    text += "E       port is taken\n\ntests/a.py:7: AssertionError\n"
    message = "AssertionError: line 0\n[+200 more lines; full report in element text]"
    failure = f'<failure message="{message}">{text}</failure>'
    case = f'<testcase classname="tests.a" name="test">{failure}</testcase>'
    why = _read(tmp_path, f"<testsuites>{case}</testsuites>").failed["tests.a.test"]
    assert why.startswith("line 0\nline 1\n")
    assert why.endswith("line 199\nport is taken\ntests/a.py:7: AssertionError")
    assert "\n[162 lines]\n" in why and len(why.splitlines()) == 41


def test_an_error_of_pytest_itself_is_told(tmp_path):
    error = '<error message="internal error">Traceback\n  File "x.py"\nOSError: no space</error>'
    case = f'<testcase classname="pytest" name="internal">{error}</testcase>'
    why = _read(tmp_path, f"<testsuites>{case}</testsuites>").failed["pytest.internal"]
    assert why == 'Traceback\n  File "x.py"\nOSError: no space'


def test_missing_or_broken_xml_is_a_failure(tmp_path):
    assert report.read_xml(tmp_path / "none.xml", "part").failed
    assert _read(tmp_path, "<testsuites><test").failed


def test_log_of_a_program_that_died(tmp_path):
    log = tmp_path / "dev-net.log"
    log.write_text(
        "[ RUN      ] Net.one\n[       OK ] Net.one (0 ms)\n"
        "[ RUN      ] Net.two\nwhy\n[  FAILED  ] Net.two (1 ms)\n"
        "[ RUN      ] Net.three\n[  SKIPPED ] Net.three (0 ms)\n"
        "[ RUN      ] Net.four\nSegmentation fault\n"
    )
    found = report.read_gtest_log(log, "part", "ended by SIGSEGV")
    assert found.passed == 1
    assert found.failed == {"Net.two": "failed", "Net.four": "ended by SIGSEGV"}
    assert list(found.skipped) == ["Net.three"]


def test_line_counts():
    found = report.Report("ring 1 (pure)", 312, {}, {"a": "why"}, 12.4)
    assert found.line() == "ring 1 (pure): 312 passed, 0 failed, 1 skipped, 12 s"


def test_unexpected_skips(tmp_path):
    rows = tmp_path / "skips.txt"
    rows.write_text("# a comment\nring2 Verbs.*  # no NIC here\n")
    expected = report.read_expected(rows)
    found = report.Report("ring 2", skipped={"Verbs.order": "no NIC", "Tcp.order": "no port"})
    assert report.unexpected_skips(found, "ring2", expected) == {"Tcp.order": "no port"}
    assert len(report.unexpected_skips(found, "ring3", expected)) == 2
