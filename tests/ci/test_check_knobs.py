"""ci/check_knobs.py: the comparison."""

import check_knobs


def test_equal_pages_have_no_difference():
    assert check_knobs.difference("a\nb\n", "a\nb\n\n") == []


def test_changed_line_is_shown():
    found = check_knobs.difference("a\nold\n", "a\nnew\n")
    assert "-old" in found
    assert "+new" in found
