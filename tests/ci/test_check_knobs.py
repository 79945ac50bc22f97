"""ci/check_knobs.py: the comparisons."""

import check_knobs
import pytest

KNOB = {"name": "RINGCOLL_SLOTS", "owner": "coll", "agreement": "agreed"}


def test_equal_pages_have_no_difference():
    assert check_knobs.difference("a\nb\n", "a\nb\n\n") == []


def test_changed_line_is_shown():
    found = check_knobs.difference("a\nold\n", "a\nnew\n")
    assert "-old" in found
    assert "+new" in found


@pytest.mark.parametrize(
    ("file", "line", "reads"),
    [
        ("coll/a.cc", "x = config.slots;", True),
        ("coll/deeper/a.h", "x = comm.config().slots + 1;", True),
        ("transport/coll/a.cc", "x = config_.slots;", True),
        ("coll/a.cc", "x = options.config->slots;", True),
        ("coll/a.cc", "x = config.slots_more; y = other.slots;", False),
        ("coll/a_test.cc", "x = config.slots;", False),
        ("mesh/a.cc", "x = config.slots;", False),
    ],
)
def test_an_owner_reads_its_knob(tmp_path, file, line, reads):
    path = tmp_path / "csrc" / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    found = check_knobs.false_owners([KNOB], tmp_path)
    assert [text.partition(":")[0] for text in found] == ([] if reads else ["RINGCOLL_SLOTS"])


@pytest.mark.parametrize(
    ("line", "true"),
    [
        ("int64_t slots = 0;  // coll, agreed: pieces in flight", True),
        ("std::string slots;  // coll, agreed: pieces in flight", True),
        ("int64_t slots = -1;      // coll, agreed: pieces in flight", True),
        ("int64_t slots = 0;  // coll, own: pieces in flight", False),
        ("int64_t slots = 0;  // mesh, agreed: pieces in flight", False),
        ("int64_t slots = 0;", False),
        ("", False),
    ],
)
def test_a_field_says_what_its_row_does(line, true):
    found = check_knobs.false_comments([KNOB], line)
    assert len(found) == (0 if true else 1)
