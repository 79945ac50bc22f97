"""ci/check_sizes.py on small trees."""

import check_sizes


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_long_file_is_named(tmp_path):
    _write(tmp_path / "csrc/base/long.cc", "\n" * 601)
    _write(tmp_path / "csrc/base/short.cc", "\n" * 600)
    assert check_sizes.long_files(tmp_path) == ["csrc/base/long.cc: 601 lines, at most 600"]


def test_long_function_is_named(tmp_path):
    body = "".join(f"  x += {line};\n" for line in range(90))
    _write(tmp_path / "csrc/base/a.cc", "int long_one(int x) {\n" + body + "  return x;\n}\n")
    (found,) = check_sizes.large_functions(tmp_path)
    assert "csrc/base/a.cc:1" in found
    assert "long_one" in found


def test_branching_function_is_named(tmp_path):
    body = "".join(f"    if x == {line}:\n        return {line}\n" for line in range(20))
    _write(tmp_path / "ringcoll/a.py", "def branching(x):\n" + body + "    return None\n")
    (found,) = check_sizes.large_functions(tmp_path)
    assert "branching" in found


def test_small_functions_pass(tmp_path):
    _write(tmp_path / "csrc/base/a.cc", "int one() { return 1; }\n")
    assert check_sizes.large_functions(tmp_path) == []
