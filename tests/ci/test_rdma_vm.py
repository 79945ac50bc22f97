"""ci/rdma-vm without a guest: its arguments, what a guest is told, its answers, the cache."""

import lzma
import os
import subprocess
from pathlib import Path

import pytest
from support import vm, vm_kernel
from support.stages import StageFailed

MARK = b"abcabd"


def test_arguments():
    given = ["--guests", "2", "--memory", "1024", "--timeout", "2.5", "--env", "A=b=c", "--", "ls"]
    options = vm.parse([*given, "--", "-l"])
    assert options.command == ["ls", "--", "-l"]
    assert (options.guests, options.memory_mib, options.timeout_s) == (2, 1024, 2.5)
    assert options.environment == {"A": "b=c"}
    assert options.cpus == 1
    assert vm.parse(["--", "ls"]).cpus == 2


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["ls"],
        ["--"],
        ["--guests", "3", "--", "ls"],
        ["--memory", "8", "--", "ls"],
        ["--timeout", "0", "--", "ls"],
        ["--timeout", "nan", "--", "ls"],
        ["--env", "1=2", "--", "ls"],
        ["--out", "/no/such/folder", "--", "ls"],
    ],
)
def test_wrong_arguments(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        vm.parse(given)
    assert stopped.value.code == 2
    assert "usage: ci/rdma-vm" in capsys.readouterr().err


def test_variables_are_passed_by_name(monkeypatch):
    monkeypatch.setenv("SET", "1")
    monkeypatch.delenv("UNSET", raising=False)
    options = vm.parse(["--env", "SET", "--env", "UNSET", "--env", "EMPTY=", "--", "ls"])
    assert options.environment == {"SET": "1", "EMPTY": ""}


def test_settings_survive_the_shell(tmp_path):
    words = ["printf", "%s|", "a b", "$HOME", "it's", "new\nline", "*", ""]
    directory = tmp_path / "a folder; with 'all'"
    options = vm.Options(command=words, environment={"V": "x y"}, directory=directory)
    script = vm.settings(options, 1, "mark") + 'printf "%s\\n" "$directory"\n"${command[@]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{directory}\n" + "".join(f"{word}|" for word in words[2:])


def test_environment_is_the_command_s_own(monkeypatch):
    monkeypatch.setenv("HIDDEN", "1")
    options = vm.Options(command=["/usr/bin/env"], environment={"V": "x y"})
    script = vm.settings(options, 1, "mark") + '"${command[@]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert seen["V"] == "x y"
    assert seen["RDMA_VM_GUEST"] == "1"
    assert seen["PATH"] == os.environ["PATH"]
    assert "HIDDEN" not in seen


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize("text", [b"", b"x", b"abcab", b"ababcabcabc\0", b"abcabab"])
def test_stream_ends_with_its_mark(text, step):
    stream = vm.Marked(MARK)
    sent = text + MARK
    got = b"".join(stream.feed(sent[at : at + step]) for at in range(0, len(sent), step))
    assert got == text
    assert stream.ended


def test_stream_is_passed_on_at_once():
    stream = vm.Marked(MARK)
    assert stream.feed(b"a line\n") == b"a line\n"
    assert stream.feed(b"and abca") == b"and "
    assert stream.feed(b"x") == b"abcax"
    assert stream.feed(b"abc") == b""
    assert stream.close() == b"abc"


def test_prefix():
    lines = vm.Prefixed(b"[1] ")
    assert lines.feed(b"on") == b""
    assert lines.feed(b"e\ntwo\nth") == b"[1] one\n[1] two\n"
    assert lines.close() == b"[1] th\n"
    assert lines.close() == b""
    assert vm.Prefixed(b"").feed(b"as it is") == b"as it is"


def test_words():
    words = vm.Words()
    words.feed(b"rea")
    assert not words.ready
    words.feed(b"dy\nexit 1")
    assert words.ready
    assert words.status is None
    words.feed(b"37\n")
    assert words.status == 137
    words.feed(b"failed no device\n")
    assert words.failure == "no device"


def _kernel(folder: Path) -> vm_kernel.Kernel:
    return vm_kernel.Kernel(folder / "6.1.0-1-amd64")


def test_command_line_of_a_guest(tmp_path):
    options = vm.Options(["ls"], out=tmp_path / "a,b", cpus=6, sockets=2, memory_mib=777)
    command = vm.qemu_command(options, 0, _kernel(tmp_path), tmp_path, (7, 8, 9))
    text = " ".join(command)
    assert f"local,id=out,path={tmp_path}/a,,b,security_model=none,multidevs=remap -device" in text
    writable = [word for word in command if word.startswith("local,") and "readonly" not in word]
    assert len(writable) == 1
    assert "-smp 6,sockets=2,maxcpus=6 -m 777" in text
    assert "path=/dev/fd/7 -device virtserialport,chardev=words" in text
    assert "netdev" not in text


def _fill(cache: Path, version: str) -> None:
    (cache / version).mkdir(parents=True)
    (cache / version / "kernel").write_bytes(b"")


def test_cache_gives_the_newest_whole_kernel(tmp_path):
    assert vm_kernel.cached(tmp_path) is None
    _fill(tmp_path, "6.1.0-9-amd64")
    _fill(tmp_path, "6.1.0-56-amd64")
    (tmp_path / "6.1.0-99-amd64").mkdir()  # never made by a download that was broken off
    (tmp_path / "tmpabc").mkdir()
    found = vm_kernel.cached(tmp_path)
    assert found is not None
    assert found.version == "6.1.0-56-amd64"


def test_kernel_made_twice_at_once(tmp_path):
    _fill(tmp_path / "scratch", "6.1.0-1-amd64")
    _fill(tmp_path / "cache", "6.1.0-1-amd64")
    made = _kernel(tmp_path / "scratch")
    assert vm_kernel.publish(made, tmp_path / "cache").folder == tmp_path / "cache" / made.version


def test_package_of_the_kernel():
    listing = "linux-image-amd64\n  Depends: linux-image-6.1.0-9-amd64\n"
    assert vm_kernel.package_of(listing) == "linux-image-6.1.0-9-amd64"
    with pytest.raises(StageFailed, match="no package linux-image-amd64"):
        vm_kernel.package_of("linux-image-amd64\n  Depends: <x>\n")


def test_kernel_is_taken_out_of_its_image():
    kernel = b"\x7fELF the kernel"
    image = b"MZ boot code \xfd7zXZ\0 not it" + lzma.compress(kernel) + b"tail"
    assert vm_kernel.uncompressed(image) == kernel
    assert vm_kernel.uncompressed(b"other") == b"other"


def test_modules_stand_behind_what_they_need():
    text = "k/a.ko: k/b-b.ko k/c.ko\nk/b-b.ko: k/c.ko\nk/c.ko:\nk/d.ko: k/c.ko\n"
    assert vm_kernel.load_order(text, ["d", "a"]) == ["k/c.ko", "k/d.ko", "k/b-b.ko", "k/a.ko"]
    assert vm_kernel.load_order(text, ["b_b"]) == ["k/c.ko", "k/b-b.ko"]
    with pytest.raises(StageFailed, match="no module e"):
        vm_kernel.load_order(text, ["e"])


def test_archive():
    archive = vm_kernel.cpio(["new"], {"bin/x": b"12345"})
    assert len(archive) % 4 == 0
    at = archive.index(b"bin/x\0")
    head = archive[at - 110 : at]
    assert head.startswith(b"070701")
    assert int(head[14:22], 16) == 0o100755
    assert int(head[54:62], 16) == 5
    assert archive[at + 6 :].lstrip(b"\0").startswith(b"12345")
    assert archive.rstrip(b"\0").endswith(b"TRAILER!!!")
