"""ci/check_links.py: what a shared object asks of a system, and what a wheel may ask for."""

import subprocess

import check_links

SYMBOLS = """
libringcoll.so:     file format elf64-x86-64

DYNAMIC SYMBOL TABLE:
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.34) pthread_create
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5) free
0000000000000000  w   D  *UND*  0000000000000000  Base        __cxa_finalize
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.36) arc4random
0000000000000000      DF *UND*  0000000000000000 (GCC_3.0)    _Unwind_Resume
000000000008a2f0 g    DF .text  0000000000000031 (GLIBC_2.99) own
"""
HEADERS = """
Dynamic Section:
  NEEDED               libringcoll.so
  NEEDED               libsodium.so.23
  NEEDED               libstdc++.so.6
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
  NEEDED               ld-linux-x86-64.so.2
  SONAME               libnever.so.1
"""


def test_a_symbol_of_a_newer_c_library_is_named_with_its_version():
    assert check_links.newer(SYMBOLS, 34) == ["arc4random, of glibc 2.36"]
    assert check_links.newer(SYMBOLS, 36) == []
    assert check_links.newer(SYMBOLS, 4) == [
        "pthread_create, of glibc 2.34",
        "arc4random, of glibc 2.36",
    ]


def test_a_library_that_systems_may_lack_is_named():
    found = check_links.elsewhere(HEADERS, {"libringcoll.so"})
    assert found == ["libsodium.so.23", "libstdc++.so.6"]


def test_a_shared_object_is_read(tmp_path):
    source, made = tmp_path / "a.cc", tmp_path / "a.so"
    source.write_text(
        "#include <cstring>\n#include <string>\n"
        "std::string copy(const char* text) { return std::string(text); }\n"
    )
    compiled = ["g++", "-shared", "-fPIC", "-O0", source, "-o", made]
    subprocess.run(compiled, check=True)
    assert check_links.asked(made, set()) == ["libstdc++.so.6"]
    assert "strlen, of glibc 2.2" in check_links.asked(made, set(), glibc=1)
