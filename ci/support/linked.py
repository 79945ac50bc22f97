"""The libraries that a wheel contains, compiled as archives from pinned sources.

An update of Debian may compile its archives again and so change what they need of the C library. Of
Highway and {fmt} Debian has no archives at all. So the sources here are those of upstream, by
version and hash. The versions are those of Debian 12: the headers of its -dev packages fit, and
tests link what a wheel links. Debian's pool keeps these files as long as it has Debian 12, whose
compiler a wheel needs anyway. A revision of a Debian package replaces other files.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support import roots
from support.stages import cache_folder, must, run, stage

_LIMIT_S = 1800


@dataclass(frozen=True)
class Source:
    """An upstream source. `place` is a file of Debian's pool, `sha256` its hash. `cmake` has the
    folder that CMake builds, and its settings; it is empty for a source with a configure script."""

    place: str
    sha256: str
    cmake: tuple[str, ...] = ()


SOURCES = (
    Source(
        "h/highway/highway_1.0.3.orig.tar.gz",
        "566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e",
        (".", "-DHWY_ENABLE_CONTRIB=OFF", "-DHWY_ENABLE_EXAMPLES=OFF"),
    ),
    Source(
        "f/fmtlib/fmtlib_9.1.0%2bds1.orig.tar.gz",
        "84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583",
        (".", "-DFMT_TEST=OFF"),
    ),
    Source(
        "l/lz4/lz4_1.9.4.orig.tar.gz",
        "0b0e3aa07c8c063ddf40b082bdf7e37a1562bda40a0ff5272957f3e987e0e54b",
        ("build/cmake", "-DLZ4_BUILD_CLI=OFF", "-DLZ4_BUILD_LEGACY_LZ4C=OFF"),
    ),
    Source(
        "x/xxhash/xxhash_0.8.1.orig.tar.gz",
        "3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c",
        ("cmake_unofficial", "-DXXHASH_BUILD_XXHSUM=OFF"),
    ),
    Source(
        "liby/libyaml/libyaml_0.2.5.orig.tar.gz",
        "fa240dbf262be053f3898006d502d514936c818e422afdcf33921c63bed9bf2e",
        (".",),
    ),
    Source(
        "libs/libsodium/libsodium_1.0.18.orig.tar.gz",
        "d59323c6b712a1519a5daf710b68f5e7fde57040845ffec53850911f10a5d4f4",
    ),
)

# Functions of the script. $archive is Debian's archive; $triplet names the compilers.
_FUNCTIONS = """
fetch() {  # place, hash
  # As root, apt fetches as a user of its own, who may not write here.
  /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "${archive%/}/pool/main/$1" \\
    source.tar "SHA256:$2"
  rm -rf source && mkdir source
  tar -xf source.tar -C source --strip-components=1
}
with_cmake() {  # folder, settings
  CC=$triplet-gcc CXX=$triplet-g++ cmake -S "source/$1" -B made -G Ninja "${@:2}" \\
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \\
    -DBUILD_TESTING=OFF
  cmake --build made
}
with_configure() {
  if [ ! -e source/configure ]; then (cd source && autoreconf -fi); fi
  mkdir made
  (cd made && ../source/configure "--host=$triplet" --disable-shared --enable-static --with-pic \\
    --disable-dependency-tracking)
  make -C made -j "$(nproc)"
}
keep() {  # folder
  mkdir -p "$1"
  find made -name 'lib*.a' -exec mv -t "$1" {} +
  rm -r made
}
"""


def script(folder: str, triplets: Sequence[str]) -> str:
    """Returns bash commands that leave the archives in `folder`/<triplet>/lib. They work in the
    folder that they start in. Their variable `archive` is Debian's archive."""
    lines = ["set -eux", _FUNCTIONS]
    for source in SOURCES:
        lines.append(f"fetch {source.place} {source.sha256}")
        how = "with_cmake " + shlex.join(source.cmake) if source.cmake else "with_configure"
        for triplet in triplets:
            lines.append(f"triplet={triplet}; {how}; keep {shlex.quote(folder)}/$triplet/lib")
    return "\n".join([*lines, "rm -r source source.tar", ""])


def archives(triplet: str) -> Path:
    """Returns a folder with the archives for this machine in lib/. The first call compiles them."""
    text = script("archives", [triplet])
    cache = cache_folder("linked")
    made = cache / hashlib.sha256(text.encode()).hexdigest()[:10]
    with roots.alone(cache / "lock"):
        if not made.exists():
            with stage("the libraries that a wheel has inside (once)"):
                part = made.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                env = {"archive": roots.mirror()}
                must(run(["bash", "-c", text], "linked", env=env, cwd=part, limit_s=_LIMIT_S))
                part.rename(made)  # a folder with its final name is complete
    return made / "archives" / triplet
