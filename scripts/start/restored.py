"""Measures machines that continue from a snapshot: until their shell answers, and back to the
snapshot (compare-start)."""

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

from guest import PATIENCE, Failure, Guest, keep, run

# The prompt of a shell as root, of BusyBox and of bash.
PROMPT = "# "
# What a shell does before a machine is put back, by the names that the table shows.
WORK = {
    "nothing": None,
    "a shell's `true`": "true",
    "three processes": "sh -c true; sh -c true; sh -c true",
    "1,000 pages, by `dd`": "dd if=/dev/urandom of=/tmp/pages bs=4096 count=1000 2>/dev/null",
}
# How many times each is done in a round.
RESETS = 10
# How long QEMU may take to boot by TCG.
LONG = 600


class Control:
    """A connection to a machine's control socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def ask(self, command):
        """Asks the machine to carry out a command, and returns the seconds until its answer."""
        begin = time.monotonic()
        self.socket.sendall(json.dumps({"command": command}).encode() + b"\n")
        answer = json.loads(self.lines.readline())
        took = time.monotonic() - begin
        if not answer["ok"]:
            raise Failure(f"{command}: {answer['error']}")
        return took


class Kind:
    """A guest that is booted once and kept in a snapshot."""

    def __init__(self, tollgate, work, name):
        self.tollgate, self.name = tollgate, name
        path = os.path.join(work, name)
        self.socket, self.snapshot, self.prefix = path + ".sock", path + ".snap", path + ".own"

    def boot(self, flags, log_in):
        """Boots the guest, and writes it to the snapshot when its shell waits."""
        flags = [*flags, "--control", self.socket]
        with Guest(self.tollgate, "run", *flags) as guest:
            log_in(guest)
            guest.shell("mkdir -p /tmp")
            # What the system does in the background after its start ends.
            time.sleep(3)
            keep(self.tollgate, guest, self.socket, self.snapshot)

    def restored(self, *flags):
        """A machine that continues from the snapshot."""
        return Guest(self.tollgate, "run", "--restore", self.snapshot, *flags)

    def until_answer(self, *flags):
        """The milliseconds from the command line until the shell of a restored guest has answered."""
        # Disks that the guest may write get overlays, so that the snapshot's disk stays as it was.
        with self.restored("--separate", self.prefix, *flags) as guest:
            took = answer_of(guest)
            # A machine that is killed would leave no translations to the next one.
            guest.process.send_signal(signal.SIGTERM)
            guest.process.wait(PATIENCE)
            return took


def answer_of(guest):
    """The milliseconds from a machine's start until its shell has answered with its prompt."""
    guest.type_line("echo it\"\" answers")
    guest.wait_for("it answers\n")
    guest.wait_for(PROMPT)
    return 1000 * (time.monotonic() - guest.begin)


def busybox(kernel, initramfs):
    """The flags for a guest with BusyBox alone, and how its shell is reached."""
    flags = ["--kernel", kernel, "--initrd", initramfs, "-m", "256M"]
    return [*flags, "--append", "console=ttyS0 quiet"], lambda guest: guest.wait_for(PROMPT, LONG)


def log_in(guest):
    """Logs in on a Debian system's console."""
    guest.wait_for("login: ", LONG)
    guest.type_line("root")
    guest.wait_for(PROMPT, LONG)
    guest.shell("dmesg -n 1")


class Tcg:
    """A guest in QEMU's TCG that is booted once and kept in its disk's snapshot."""

    def __init__(self, work, name, memory, kernel, initramfs, append):
        path = os.path.join(work, name)
        self.disk, self.monitor = path + ".qcow2", path + ".monitor"
        self.command = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-m", memory]
        self.command += ["-display", "none", "-nic", "none", "-serial", "stdio"]
        self.command += ["-monitor", f"unix:{self.monitor},server=on,wait=off"]
        self.command += ["-drive", f"file={self.disk},if=virtio,format=qcow2"]
        self.command += ["-kernel", kernel, "-initrd", initramfs, "-append", append]

    def boot(self, make_disk, reach):
        """Boots the guest, and has QEMU keep it when its shell waits."""
        make_disk(self.disk)
        with Guest(*self.command) as guest:
            reach(guest)
            guest.shell("true")
            time.sleep(3)
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.connect(self.monitor)
                monitor.sendall(b"savevm warm\nquit\n")
                guest.process.wait(PATIENCE)
        if "warm" not in run("qemu-img", "snapshot", "-l", self.disk):
            raise Failure("QEMU has kept no snapshot")

    def until_answer(self, *_):
        """The milliseconds from the command line until the shell of the loaded guest has answered."""
        with Guest(*self.command, "-loadvm", "warm") as guest:
            return answer_of(guest)


def no_disk(path):
    """Makes a disk for a guest that has none: QEMU keeps the guest in it."""
    run("qemu-img", "create", "-q", "-f", "qcow2", path, "64M")


class Rows:
    """The rows of a table, and what each has measured or why it was not run."""

    def __init__(self):
        self.measured, self.reasons = {}, {}

    def prepare(self, name, make):
        """Makes what a row measures; if that is impossible, the row says why."""
        print(f"compare-start: {name}: preparing", file=sys.stderr)
        try:
            return make()
        except (Failure, OSError, subprocess.SubprocessError) as error:
            self.reasons[name] = str(error).splitlines()[0]
            return None

    def show(self, of):
        """Prints the table; `of` makes the cells from a row's figures."""
        for name in [*self.measured, *self.reasons]:
            if name in self.reasons:
                print(f"| {name} | not run: {self.reasons[name]} |")
            else:
                print(f"| {name} | {of(self.measured[name])} |")


def restores(tollgate, guests, work, rounds):
    """Prints how long it takes from the command line until a restored guest's shell answers."""
    rows, kinds = Rows(), {}
    debian = os.path.join(guests, "system-amd64")
    kernel = os.path.join(guests, "debian-amd64/vmlinuz")
    initramfs = os.path.join(guests, "initrd-amd64.img")
    append = "root=/dev/vda console=ttyS0 quiet"
    image = os.path.join(debian, "disk.img")
    parts = [os.path.join(debian, "cloud", name) for name in ("vmlinuz", "initrd.img")]

    def overlay(path):
        if not os.path.exists(image):
            raise Failure("scripts/get-system makes the Debian system on a disk")
        run(tollgate, "image", "create", "-f", "qcow2", "-b", image, "-F", "raw", path)

    def small():
        kind = Kind(tollgate, work, "small")
        kind.boot(*busybox(kernel, initramfs))
        return kind

    def large():
        kind = Kind(tollgate, work, "large")
        disk = os.path.join(work, "large.qcow2")
        overlay(disk)
        flags = ["--kernel", parts[0], "--initrd", parts[1], "-m", "512M"]
        flags += ["--drive", f"file={disk}", "--append", append]
        kind.boot(flags, log_in)
        return kind

    def tcg_small():
        machine = Tcg(work, "tcg-small", "256", kernel, initramfs, "console=ttyS0 quiet")
        machine.boot(no_disk, lambda guest: guest.wait_for(PROMPT, LONG))
        return machine

    def tcg_large():
        machine = Tcg(work, "tcg-large", "512", *parts, append)
        machine.boot(overlay, log_in)
        return machine

    makers = {
        "`tollgate run --restore`, BusyBox, 256 MiB": small,
        "`tollgate run --restore`, Debian with systemd, 512 MiB": large,
    }
    if shutil.which("qemu-system-x86_64") and shutil.which("qemu-img"):
        makers["QEMU's TCG, `-loadvm`, board `pc`, BusyBox, 256 MiB"] = tcg_small
        makers["QEMU's TCG, `-loadvm`, board `pc`, Debian with systemd, 512 MiB"] = tcg_large
    else:
        rows.reasons["QEMU's TCG, `-loadvm`"] = "qemu-system-x86 and qemu-utils are not installed"
    for name, make in makers.items():
        kind = rows.prepare(name, make)
        if kind is None:
            continue
        kinds[name] = (kind, [])
        if isinstance(kind, Kind):
            kinds[f"{name}, no translations kept"] = (kind, ["--translation-cache", "off"])
            # The first ones leave translations.
            kind.until_answer()
            kind.until_answer()
    rows.measured = {name: [] for name in kinds}
    for number in range(rounds):
        for name, (kind, flags) in kinds.items():
            rows.measured[name].append(kind.until_answer(*flags))
        print(f"compare-start: restores: round {number + 1} of {rounds}", file=sys.stderr)
    print("\n| restored machine | until its shell answers, ms (median, smallest, largest) |\n|---|---|")
    rows.show(lambda ms: f"{statistics.median(ms):.0f}, {min(ms):.0f}, {max(ms):.0f}")


def resets(tollgate, guests, work, rounds):
    """Prints how long `tollgate reset` takes after different work."""
    kind = Kind(tollgate, work, "reset")
    kernel = os.path.join(guests, "debian-amd64/vmlinuz")
    kind.boot(*busybox(kernel, os.path.join(guests, "initrd-amd64.img")))
    times = {name: [] for name in WORK}
    for number in range(rounds):
        for name, command in WORK.items():
            # Each kind of work has a machine of its own: pages that were written at any time since
            # the machine was restored are compared at each reset.
            with kind.restored("--control", kind.socket) as guest:
                guest.shell("true")
                with Control(kind.socket) as control:
                    for count in range(RESETS + 1):
                        if command is not None:
                            guest.shell(command)
                        took = control.ask("reset")
                        # The first one copies pages that no reset has put back before.
                        if count != 0:
                            times[name].append(1000 * took)
                    guest.process.send_signal(signal.SIGTERM)
        print(f"compare-start: resets: round {number + 1} of {rounds}", file=sys.stderr)
    print("\n| done since the last reset, BusyBox, 256 MiB | `reset`, ms (median, smallest, largest) | resets per second |")
    print("|---|---|---|")
    for name, ms in times.items():
        median = statistics.median(ms)
        print(f"| {name} | {median:.2f}, {min(ms):.2f}, {max(ms):.2f} | {1000 / median:.0f} |")


def main():
    tollgate, guests, work, rounds, only = sys.argv[1:]
    try:
        if only in ("all", "restores"):
            restores(tollgate, guests, work, int(rounds))
        if only in ("all", "resets"):
            resets(tollgate, guests, work, int(rounds))
    except Failure as failure:
        sys.exit(f"compare-start: error: {failure}")


main()
