"""ci/check_headers.py on small trees."""

import check_headers


def test_header_that_needs_another_is_named(tmp_path):
    layer = tmp_path / "csrc" / "base"
    layer.mkdir(parents=True)
    (layer / "good.h").write_text("#pragma once\n#include <string>\nusing Name = std::string;\n")
    (layer / "bad.h").write_text("#pragma once\nusing Name = std::string;\n")
    (layer / "unguarded.h").write_text("struct Twice {};\n")
    found = check_headers.failures(tmp_path)
    assert sorted(found) == ["csrc/base/bad.h (c++)", "csrc/base/unguarded.h (c++)"]
    assert "std" in found["csrc/base/bad.h (c++)"]


def test_installed_header_must_be_c(tmp_path):
    folder = tmp_path / "csrc" / "include" / "ringcoll"
    folder.mkdir(parents=True)
    (folder / "ringcoll.h").write_text("#pragma once\n#ifdef __cplusplus\n#else\nbool b;\n#endif\n")
    assert list(check_headers.failures(tmp_path)) == ["csrc/include/ringcoll/ringcoll.h (c)"]


def test_header_that_leads_its_source_is_left_to_whoever_compiles_that(tmp_path):
    layer = tmp_path / "csrc" / "base"
    layer.mkdir(parents=True)
    for name in ("leads", "second", "unguarded"):
        guard = "" if name == "unguarded" else "#pragma once\n"
        (layer / f"{name}.h").write_text(f"{guard}using Name = std::string;\n")
    (layer / "leads.cc").write_text('// Why.\n#include "base/leads.h"\n#include <string>\n')
    (layer / "second.cc").write_text('#include <string>\n#include "base/second.h"\n')
    (layer / "unguarded.cc").write_text('#include "base/unguarded.h"\n')
    found = check_headers.failures(tmp_path)
    assert sorted(found) == ["csrc/base/second.h (c++)", "csrc/base/unguarded.h (c++)"]
