"""The machines in which compare-real runs programs, and one run of one of them."""

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

END = re.compile(r"^real: end (\S+) (\d+) (\d+) (\d+) ([0-9a-f]+) (\S+)$")
# The allowed error of the guest's clock in one run: a part of it, plus seconds for the transfer of
# the line that reports its end.
CLOCK_PART, CLOCK_SLACK = 0.05, 0.05


# The values of the knob user-code.
USER_CODE = ("translated", "native", "adaptive")


class Failure(Exception):
    """A machine that cannot be run, or that did not do its work; `booted` says whether it began."""

    booted = True


@dataclass
class Machine:
    """One arm of the comparison.

    name: as in tables, unique; kind: native, uml, tcg or tollgate; about: for people.
    command: what starts it; {initrd} and {append} are replaced.
    boots: how often it is started until it boots: under QEMU 7.2's TCG, Debian's 6.12
    kernel faults in about every second boot, always before the first process.
    """

    name: str
    kind: str
    about: str
    command: list = field(default_factory=list)
    boots: int = 1


@dataclass
class Sample:
    """One run of one row.

    time: nanoseconds of a run, or of an operation, by the guest's clock; cpu: the same
    by the processor time that the host spent, or None. output: a hash of it.
    """

    row: str
    time: float
    cpu: float | None
    status: int
    output: str


def emulator_of(architecture):
    return "qemu-system-x86_64" if architecture == "amd64" else "qemu-system-i386"


def version_of(command):
    """The first line that a program's --version prints."""
    try:
        run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"cannot run {command[0]}: {error}") from error
    return (run.stdout.splitlines() or ["?"])[0]


def require(tool, package):
    if shutil.which(tool) is None:
        raise Failure(f"'{tool}' is missing; install the Debian package {package}")


def tollgates_of(lines, user_code):
    """Returns name and command line of each Tollgate: all lines, each with every value of user_code."""
    names = ["tollgate"] if len(lines) == 1 else [f"tollgate-{chr(ord('a') + number)}" for number in range(len(lines))]
    found = list(zip(names, lines))
    if not user_code:
        return found
    return [(f"{name}-{value}", f"{line} --knob user-code={value}") for name, line in found for value in user_code]


def machines_of(kind, architecture, folder, memory, tollgates, options):
    """The machines of one arm: one natively, two models of TCG, one for each of tollgates_of.

    `folder` holds the kernel, vmlinuz; User-mode Linux is a kernel of its own.
    """
    kernel = os.path.join(folder, "vmlinuz")
    if kind == "native":
        require("unshare", "util-linux")
        return [Machine("native", "native", f"Linux {os.uname().release}")]
    if kind == "uml":
        require("linux.uml", "user-mode-linux")
        return [Machine("uml", "uml", "User-mode Linux " + version_of(["linux.uml"]),
                        ["linux.uml", f"mem={memory}", "initrd={initrd}", "con=null", "con0=null,fd:1",
                         "console=tty0", "{append}"])]
    if kind == "tcg":
        emulator = emulator_of(architecture)
        require(emulator, "qemu-system-x86")
        models = {"tcg-max": "max", "tcg": "max,-erms,-la57" if architecture == "amd64" else "max,-erms"}
        return [Machine(name, "tcg", f"{version_of([emulator])}, -cpu {model}",
                        [emulator, "-accel", "tcg,thread=single", "-cpu", model, "-smp", "1", "-M", "pc",
                         "-m", memory, "-display", "none", "-serial", "stdio", "-monitor", "none",
                         "-no-reboot", "-nic", "none", "-kernel", kernel, "-initrd", "{initrd}",
                         "-append", "console=ttyS0 {append}"], boots=12)
                for name, model in models.items()]
    found = []
    for name, line in tollgates:
        words = shlex.split(line)
        found.append(Machine(name, "tollgate", f"{version_of(words[:1])}: {' '.join(words)}",
                             [words[0], "run", "--kernel", kernel, "--initrd", "{initrd}", "--memory", memory,
                              "--append", "console=ttyS0 {append}", *words[1:], *options]))
    return found


def command_of(machine, work, root, mode, pin, append):
    """Returns the command line of a machine's run; `mode` is the driver's (driver.c)."""
    if machine.kind == "native":
        # The root is in RAM, as in the guests. It disappears with the namespace.
        script = ('mount -t tmpfs -o size=8G,mode=755 tmpfs "$1" && tar -x -C "$1" --exclude="./dev/*" -f "$2" '
                  '--no-same-owner && tar -x -C "$1" -f "$3" --no-same-owner && mkdir -p "$1/dev" && '
                  'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && '
                  'exec env real_mode=native chroot "$1" /real/driver')
        namespaces = ["unshare", "--mount", "--net", "--pid", "--fork"]
        if os.geteuid() != 0:
            namespaces.append("--map-root-user")
        return [*pin, *namespaces, "sh", "-c", script, "sh", os.path.join(work, "native"),
                os.path.join(root, "root.tar"), os.path.join(work, "rows.tar")]
    words = {"{initrd}": os.path.join(work, "initrd"),
             "{append}": f"quiet panic=-1 rdinit=/real/driver real_mode={mode} {append}".strip()}
    command = []
    for part in machine.command:
        if part == "{append}":
            command += words[part].split()
            continue
        for word, text in words.items():
            part = part.replace(word, text)
        command.append(part)
    return [*pin, *command]


def lines_of(process, limit):
    """Yields the lines of the process's output with the host's time of their arrival."""
    buffer, deadline = b"", time.monotonic() + limit
    descriptor = process.stdout.fileno()
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise Failure(f"no end after {limit} seconds")
        block, now = os.read(descriptor, 65536), time.monotonic()
        if not block:
            return
        *lines, buffer = (buffer + block).split(b"\n")
        for line in lines:
            yield now, line.decode("utf-8", "replace").strip("\r")


def run(machine, work, root, mode, pin, append, limit, on_row, log, on_end=None):
    """Run a machine once: its samples in order.

    on_row is called with each row's name as it begins, on_end as it ends. All output goes into
    the file `log`.
    """
    samples, marks, begun, complete = [], {}, {}, False
    command = command_of(machine, work, root, mode, pin, append)
    with tempfile.TemporaryDirectory(prefix="uml-", dir="/dev/shm") as scratch, open(log, "w") as copy:
        copy.write(shlex.join(command) + "\n")
        started = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": scratch},
                                   start_new_session=True)
        try:
            for now, line in lines_of(process, limit):
                copy.write(f"{now - started:.6f} {line}\n")
                # The kernel may print on the same line before this.
                line = line[max(0, line.find("real: ")):]
                words = line.split()
                if line.startswith("real: begin ") and len(words) == 3:
                    begun[words[2]] = now, process_cpu(process)
                    on_row(words[2])
                elif match := END.match(line):
                    samples.append(sample_of(machine, match, now, process_cpu(process), begun))
                    if on_end is not None:
                        on_end(match.group(1))
                elif line.startswith(("real: init ", "real: ready ")) and len(words) == 3:
                    marks[words[1]] = now - started, int(words[2]), process_cpu(process)
                elif line == "real: complete":
                    complete = True
                elif line.startswith("real: cannot "):
                    raise Failure(line[len("real: "):])
            process.wait(30)
        finally:
            # User-mode Linux consists of several processes; all of them are in the machine's
            # session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if mode == "systemd" and "ready" in marks and "init" in marks:
        complete, samples = True, samples_of_boot(machine, marks)
    if not complete:
        failure = Failure(f"it ended (exit code {process.returncode}) before its work was done")
        failure.booted = bool(samples or begun or marks)
        raise failure
    return samples


def process_cpu(process):
    """Returns the processor time of a process and of all that it has started, in nanoseconds:
    Tollgate runs programs natively in processes of their own. Those that run have a CPU clock
    (clock_getcpuclockid(3)); the kernel counts those that have ended in ticks."""
    parents, ended = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                # The name of the program, in parentheses, may contain anything.
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        ended[int(name)] = int(fields[13]) + int(fields[14])
    tree = [process.pid]
    for number in tree:
        tree += [child for child, parent in parents.items() if parent == number]
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    total = None
    for number in tree:
        try:
            total = (total or 0) + time.clock_gettime_ns((~number << 3) | 2) + ended.get(number, 0) * tick
        except OSError:
            continue
    return total


def sample_of(machine, match, now, cpu, begun):
    """Combines the values of the driver's `end` line with the host's clocks."""
    name, elapsed, own_cpu, status, output, value = match.groups()
    elapsed, own_cpu, value = int(elapsed), int(own_cpu), float(value)
    begin, cpu_before = begun.pop(name, (None, None))
    if begin is not None:
        check_clock(machine, name, elapsed / 1e9, now - begin)
    if machine.kind == "native":
        cpu = own_cpu
    elif machine.kind == "uml" or cpu is None or cpu_before is None:
        # User-mode Linux consists of many processes, which start and end.
        cpu = None
    else:
        cpu -= cpu_before
    if value:
        # For the time of an operation: the share of the elapsed time in which the processor worked.
        cpu = value * cpu / elapsed if cpu is not None and elapsed else None
    return Sample(name, value or elapsed, cpu, int(status), output)


def samples_of_boot(machine, marks):
    """Returns the times from systemd's start, and from the start of the process, to multi-user.target."""
    (host_init, init, cpu_init), (host_ready, ready, cpu_ready) = marks["init"], marks["ready"]
    check_clock(machine, "the boot of systemd", (ready - init) / 1e9, host_ready - host_init)
    if machine.kind == "uml" or cpu_init is None or cpu_ready is None:
        cpu_init = cpu_ready = None
    return [Sample("systemd_boot", ready - init, cpu_ready and cpu_ready - cpu_init, 0, "0"),
            Sample("systemd_from_start", host_ready * 1e9, cpu_ready, 0, "0")]


def check_clock(machine, name, guest, host):
    """Checks that a guest's clock agrees with the host's."""
    if guest > 0 and abs(guest - host) > CLOCK_PART * host + CLOCK_SLACK:
        raise Failure(f"{name} took {guest:.3f} s by the guest's clock and {host:.3f} s by the host's")
