"""Guests for ci/rdma-vm: QEMU's command line, the settings for a guest, and its answers.

A guest has three virtio serial ports. On the first, ci/guest/start reports "ready", "failed WHY"
and "exit STATUS". The others carry the command's output. Each of them ends with a mark, since ports
are independent and the status may arrive before the last output.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import setup, vm_kernel
from support.stages import StageFailed

CANNOT_BOOT = 77  # test frameworks take it for "skipped"
TIMED_OUT = 124  # as timeout(1) does
GUEST_DIED = 125

_BOOT_LIMIT_S = 120
_END_LIMIT_S = 5
_GUEST = setup.CI / "guest"
_PORTS = ("words", "out", "err")
_CABLES = 2  # between two guests; each is a network of its own
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PR_SET_PDEATHSIG = 1
# The emulator's clock is reliable, and nothing here needs mitigations against Spectre.
_KERNEL_LINE = (
    "console=ttyS0 loglevel=4 panic=-1 maxcpus=1 mitigations=off tsc=reliable no_timer_check "
    "random.trust_cpu=on"
)
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Options:
    """What to run, and in how many guests of which size."""

    command: list[str]
    guests: int = 1
    memory_mib: int = 4096
    cpus: int = 2
    sockets: int = 1
    timeout_s: float = 600
    environment: dict[str, str] = field(default_factory=dict)
    out: Path | None = None
    accelerator: str = "tcg"
    directory: Path = field(default_factory=Path.cwd)


def _number(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time to wait")
    return value


def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{name!r} is no name of a variable")
    return name, value if equals else os.environ.get(name)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci/rdma-vm",
        description=description,
        usage="ci/rdma-vm [options] -- COMMAND...",
        epilog=f"Exit status: the command's (of two guests, the first that is not 0), {TIMED_OUT} "
        f"after a timeout, {GUEST_DIED} if a guest crashed, {CANNOT_BOOT} if none can boot here.",
    )
    add = parser.add_argument
    add("--guests", type=int, choices=(1, 2), default=1, help="two are joined by two cables")
    add("--memory", type=lambda text: _number(text, 512), default=4096, metavar="MiB")
    add("--cpus", type=lambda text: _number(text, 1), metavar="N", help="2; of two guests, 1 each")
    add("--sockets", type=lambda text: _number(text, 1), default=1, metavar="N", help="of CPUs (1)")
    add("--timeout", type=_seconds, default=600.0, metavar="S", help="the command's, in seconds")
    add("--env", type=_variable, action="append", default=[], metavar="NAME[=VALUE]")
    add("--out", type=Path, metavar="DIR", help="folder of the host that the guest can write to")
    # KVM is not tried automatically: inside another virtual machine it may hang instead of failing.
    add("--accel", choices=("tcg", "kvm"), default="tcg", help="kvm is faster, where it works")
    return parser


def parse(arguments: Sequence[str], description: str = "") -> Options:
    """Reads a command line. Raises SystemExit with a message, as argparse does."""
    parser = _parser(description)
    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    wanted = parser.parse_args(words[:split])
    command = words[split + 1 :]
    if not command:
        parser.error("a command is wanted, behind --")
    if wanted.out and not wanted.out.is_dir():
        parser.error(f"{wanted.out} is no folder")
    cpus = wanted.cpus or (2 if wanted.guests == 1 else 1)
    if cpus % wanted.sockets:
        parser.error(f"{cpus} CPUs are not shared out evenly to {wanted.sockets} sockets")
    return Options(
        command=command,
        guests=wanted.guests,
        memory_mib=wanted.memory,
        cpus=cpus,
        sockets=wanted.sockets,
        timeout_s=wanted.timeout,
        environment={name: value for name, value in wanted.env if value is not None},
        out=wanted.out.resolve() if wanted.out else None,
        accelerator=wanted.accel,
    )


def settings(options: Options, number: int, mark: str) -> str:
    """Returns what ci/guest/start reads, as bash assignments."""
    environment = {name: os.environ.get(name, "") for name in ("PATH", "HOME")}
    environment |= {**options.environment, "RDMA_VM_GUEST": str(number)}
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = shlex.join(["/usr/bin/env", "-i", *variables, *options.command])
    return (
        f"guest={number} guests={options.guests} mark={mark}\n"
        f"directory={shlex.quote(str(options.directory))}\n"
        f"out={shlex.quote(str(options.out or ''))}\n"
        f"command=({command})\n"
    )


class Marked:
    """A stream of bytes that ends with a mark."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = b""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Returns what can be passed on: everything but an end that may begin the mark."""
        text = self._held + data
        before, found, _ = text.partition(self._mark)
        if found:
            self.ended = True
            self._held = b""
            return before
        lengths = range(min(len(text), len(self._mark) - 1), 0, -1)
        held = next((n for n in lengths if text.endswith(self._mark[:n])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def close(self) -> bytes:
        """Returns what was held back, after the stream broke off."""
        held, self._held, self.ended = self._held, b"", True
        return held


class Prefixed:
    """Passes on whole lines with a prefix; without a prefix, bytes as they come."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        if not self._prefix:
            return data
        *lines, self._line = (self._line + data).split(b"\n")
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def close(self) -> bytes:
        return self.feed(b"\n") if self._line else b""


class Output:
    """Passes one output stream of the command from the guest to a descriptor of this process."""

    def __init__(self, target: int, prefix: bytes, mark: bytes) -> None:
        self._target = target
        self._marked = Marked(mark)
        self._lines = Prefixed(prefix)

    @property
    def ended(self) -> bool:
        return self._marked.ended

    def feed(self, data: bytes) -> None:
        self._write(self._lines.feed(self._marked.feed(data)))
        if self.ended:
            self._write(self._lines.close())

    def close(self) -> None:
        if not self.ended:
            self._write(self._lines.feed(self._marked.close()) + self._lines.close())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._target, data) :]


class Words:
    """Reads the lines of ci/guest/start."""

    def __init__(self) -> None:
        self._line = b""
        self.ready = False
        self.failure = ""
        self.status: int | None = None

    def feed(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "ready":
                self.ready = True
            elif word == "exit" and rest.isdigit():
                self.status = int(rest)
            else:
                self.failure = rest or word

    def close(self) -> None:
        """The port is closed; nothing is left to do."""


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")  # as QEMU expects


def _share(tag: str, path: Path, *, writable: bool = False) -> list[str]:
    mode = "" if writable else ",readonly=on"
    files = f"local,id={tag},path={_escaped(path)},security_model=none,multidevs=remap{mode}"
    return ["-fsdev", files, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _port(number: int, name: str, descriptor: int) -> list[str]:
    there = f"file,id={name},path=/dev/fd/{descriptor}"
    return ["-chardev", there, "-device", f"virtserialport,chardev={name},name={name},nr={number}"]


def _cable(number: int, which: int, descriptor: int) -> list[str]:
    """Returns QEMU's options for one end of a cable.

    Each frame gets one buffer (mrg_rxbuf=off). Otherwise QEMU before 9.1 may wait for ever if the
    guest adds too few buffers at the moment when QEMU asks to be notified of more (qemu/qemu#267).
    Without event indices, a side that has missed one notification gets the next one.
    """
    mac = f"52:54:00:77:{which:02x}:{number + 1:02x}"  # ci/guest/start recognises the cable by it
    card = f"virtio-net-pci,netdev=cable{which},mac={mac},host_mtu=9000,romfile="
    card += ",mrg_rxbuf=off,event_idx=off"
    return ["-netdev", f"socket,id=cable{which},fd={descriptor}", "-device", card]


def processors(options: Options) -> list[str]:
    """Returns QEMU's options for the processors of a guest.

    A guest may always have two processors. If it could have only one, QEMU 7.2 would leave out the
    guest's barriers and make its atomic operations plain ones (since 8.1 it keeps barriers). But
    its devices run in another thread. A write to a ring would be seen late, the device would not be
    notified, and that cable or port would hang.
    """
    accelerator = {"tcg": "tcg,thread=multi", "kvm": "kvm"}[options.accelerator]
    count = f"{options.cpus},sockets={options.sockets},maxcpus={max(2, options.cpus)}"
    return ["-accel", accelerator, "-cpu", "max", "-smp", count]


def qemu_command(
    options: Options, number: int, kernel: vm_kernel.Kernel, folder: Path, ports: Sequence[int]
) -> list[str]:
    """Returns the command line of one guest, without its cables. The guest's files are in `folder`,
    and its ports write to `ports`."""
    command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]
    command += ["-display", "none", "-machine", "pc", *processors(options)]
    command += ["-m", str(options.memory_mib)]
    command += ["-kernel", str(kernel.image), "-initrd", str(folder / "initramfs")]
    command += ["-append", _KERNEL_LINE, "-serial", "chardev:console"]
    command += ["-chardev", f"file,id=console,path={_escaped(folder / 'console')}"]
    command += _share("root", Path("/"))
    command += _share("job", folder / "job")
    command += _share("modules", kernel.modules)
    if options.out:
        command += _share("out", options.out, writable=True)
    command += ["-device", "virtio-serial-pci"]
    for port, (name, descriptor) in enumerate(zip(_PORTS, ports, strict=True), 1):
        command += _port(port, name, descriptor)
    return command


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Guest:
    """A running guest. close() ends it and leaves only its folder."""

    def __init__(
        self,
        options: Options,
        number: int,
        kernel: vm_kernel.Kernel,
        folder: Path,
        cables: Sequence[socket.socket],
    ) -> None:
        self.number = number
        self._folder = folder
        mark = secrets.token_hex(16)
        (folder / "job").mkdir()
        (folder / "job" / "settings").write_text(settings(options, number, mark))
        shutil.copy(_GUEST / "start", folder / "job" / "start")
        prefix = f"[{number}] ".encode() if options.guests > 1 else b""
        self.words = Words()
        self.outputs = [Output(target, prefix, mark.encode()) for target in (1, 2)]
        pipes = [os.pipe() for _ in _PORTS]
        writers = [writer for _, writer in pipes]
        command = qemu_command(options, number, kernel, folder, writers)
        passed = [*writers]
        for which, cable in enumerate(cables):
            command += _cable(number, which, cable.fileno())
            passed.append(cable.fileno())
        with (folder / "qemu").open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=passed,
                preexec_fn=_die_with_parent,
                start_new_session=True,  # Ctrl-C is for this process only
            )
        for writer in writers:
            os.close(writer)
        self.readers: dict[int, Words | Output] = dict(
            zip([reader for reader, _ in pipes], [self.words, *self.outputs], strict=True)
        )

    @property
    def finished(self) -> bool:
        """True if the command has ended and all its output has arrived, or the guest is gone."""
        complete = self.words.status is not None and all(out.ended for out in self.outputs)
        return complete or not self.readers

    def read(self, reader: int) -> bool:
        """Passes on the data of a port. Returns False once, when the port is closed."""
        data = os.read(reader, 1 << 16)
        if data:
            self.readers[reader].feed(data)
            return True
        os.close(reader)
        self.readers.pop(reader).close()
        return False

    def last_words(self) -> str:
        """Returns the last lines of QEMU and of the guest's kernel, indented."""
        lines = []
        for name in ("console", "qemu"):
            path = self._folder / name
            text = path.read_bytes().decode(errors="replace") if path.exists() else ""
            plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\S\n]+$", "", text, flags=re.MULTILINE)
            lines += [f"    | {line}" for line in plain.splitlines()[-12:] if line.strip()]
        return "\n".join(lines)

    def close(self) -> None:
        """Ends the guest, as its power switch would."""
        self.process.terminate()
        try:
            self.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for reader in self.readers:
            os.close(reader)
        self.readers.clear()


def note(text: str) -> None:
    """Prints a line for the user, apart from the command's output."""
    print(f"rdma-vm: {text}", file=sys.stderr, flush=True)


def _booted(guests: Sequence[Guest], limit_passed: bool) -> bool:
    """True if all commands have begun. Raises StageFailed if a guest cannot start its command."""
    for guest in guests:
        if guest.words.ready:
            continue
        if guest.words.failure:
            raise StageFailed(f"guest {guest.number}: {guest.words.failure}\n{guest.last_words()}")
        if guest.finished or limit_passed:
            how = f"was not up in {_BOOT_LIMIT_S} s" if limit_passed else "ended while it started"
            raise StageFailed(f"guest {guest.number} {how}\n{guest.last_words()}")
    return all(guest.words.ready for guest in guests)


def watch(guests: Sequence[Guest], timeout_s: float) -> int:
    """Passes on the guests' output until their commands have ended, and returns the exit status.

    Raises StageFailed if a guest does not boot.
    """
    booted = False
    deadline = time.monotonic() + _BOOT_LIMIT_S
    with selectors.DefaultSelector() as selector:
        for guest in guests:
            for reader in guest.readers:
                selector.register(reader, selectors.EVENT_READ, guest)
        while True:
            left = deadline - time.monotonic()
            for key, _ in selector.select(max(left, 0)):
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
            if not booted and _booted(guests, left <= 0):
                booted = True
                deadline = time.monotonic() + timeout_s
            elif all(guest.finished for guest in guests):
                return _status(guests)
            elif booted and left <= 0:
                note(f"the command did not end in {timeout_s:g} s")
                return TIMED_OUT


def _status(guests: Sequence[Guest]) -> int:
    statuses = []
    for guest in guests:
        if guest.words.status is None:
            note(f"guest {guest.number} went off while the command ran\n{guest.last_words()}")
        statuses.append(GUEST_DIED if guest.words.status is None else guest.words.status)
    return next((status for status in statuses if status), 0)


@contextlib.contextmanager
def _cables(guests: int) -> Iterator[list[list[socket.socket]]]:
    """Yields each guest's ends of the cables. They are socket pairs, so nothing listens."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(_CABLES if guests == 2 else 0)]
        for end in (end for pair in pairs for end in pair):
            stack.enter_context(end)
        yield [[pair[number] for pair in pairs] for number in range(guests)]


def run(options: Options, kernel: vm_kernel.Kernel) -> int:
    """Boots the guests, runs the command in each and ends them. Returns the exit status.

    Raises StageFailed, with the reason first, if the guests cannot be booted here.
    """
    image = vm_kernel.initramfs(kernel, _GUEST / "init")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdma-vm-")))
        guests = []
        with _cables(options.guests) as cables:
            for number, ends in enumerate(cables):
                folder = scratch / str(number)
                folder.mkdir()
                (folder / "initramfs").write_bytes(image)
                guests.append(Guest(options, number, kernel, folder, ends))
                stack.callback(guests[-1].close)
        return watch(guests, options.timeout_s)
