"""Measures starts of short commands, natively and in machines (compare-start)."""

import os
import shutil
import statistics
import subprocess
import sys
import time

# How long warm machines run before their memory is read.
SETTLING = 3


def commands():
    """The commands, by the names that the table shows."""
    # The guest starts the interpreter itself, not a script that searches for it.
    python = sys.executable
    return {"`true`": ["true"], "`python3 -c 'print(1)'`": [python, "-c", "print(1)"]}


def run_at_once(command, count, environment):
    """Starts a command several times at once. Returns the seconds until the last one has ended."""
    begin = time.monotonic()
    processes = [
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in processes:
        _, errors = process.communicate()
        if process.returncode != 0:
            sys.exit(f"compare-start: {' '.join(command)}: exit code {process.returncode}\n{errors}")
    return time.monotonic() - begin


def works(command):
    """Whether a program is there and this host lets it run."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(command, check=False, **quiet).returncode == 0
    except OSError:
        return False


def proportional_set_size(process):
    """The bytes of a process, where memory that it shares is divided by the number of its users."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def memory_of(command, count, environment):
    """Returns the mean proportional set size of several machines that do nothing."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    machines = [subprocess.Popen(command, env=environment, **quiet) for _ in range(count)]
    time.sleep(SETTLING)
    mean = statistics.mean(proportional_set_size(machine.pid) for machine in machines)
    for machine in machines:
        machine.terminate()
    for machine in machines:
        machine.wait()
    return mean


def arms(tollgate):
    """The ways to run a command, by name: what comes before the command."""
    found = {"native": []}
    unshare = ["unshare", "--map-root-user", "--user", "--pid", "--fork", "--mount-proc"]
    bwrap = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"]
    for name, prefix in (("unshare", unshare), ("bwrap", bwrap)):
        if shutil.which(name) and works([*prefix, "true"]):
            found[name] = prefix
    off = "--translation-cache=off"
    found["exec --cold, no translations kept"] = [tollgate, "exec", "--cold", off, "--"]
    found["exec --cold"] = [tollgate, "exec", "--cold", "--"]
    found["exec, warm, no translations kept"] = [tollgate, "exec", off, "--"]
    found["exec, warm"] = [tollgate, "exec", "--"]
    return found


def boards(kernel, initramfs):
    """TCG's boots, by name."""
    if not shutil.which("qemu-system-x86_64"):
        return {}
    command = ["qemu-system-x86_64", "-accel", "tcg", "-m", "256", "-nographic", "-no-reboot"]
    command += ["-kernel", kernel, "-initrd", initramfs]
    command += ["-append", "console=ttyS0 quiet panic=-1 tollgate.autooff"]
    return {"TCG, boot alone": command}


def main():
    tollgate, kernel, initramfs, work, rounds, at_once = sys.argv[1:]
    rounds, at_once = int(rounds), int(at_once)
    environment = {**os.environ, "XDG_CACHE_HOME": os.path.join(work, "cache")}
    environment["XDG_STATE_HOME"] = os.path.join(work, "state")
    rows = {}
    for command, words in commands().items():
        for name, prefix in arms(tollgate).items():
            for count in (1, at_once):
                rows[command, name, count] = [*prefix, *words]
    for name, command in boards(kernel, initramfs).items():
        rows["", name, 1] = command
    # The first warm run makes the template, and each command's first runs leave translations.
    for words in commands().values():
        for flags in ([], [], [], ["--cold"], ["--cold"]):
            run_at_once([tollgate, "exec", *flags, "--", *words], 1, environment)
    times = {row: [] for row in rows}
    for number in range(rounds):
        for row, command in rows.items():
            # Many cold boots at once take long and say little.
            if row[1].startswith("exec --cold") and row[2] > 1 and number > 1:
                continue
            times[row].append(run_at_once(command, row[2], environment))
        print(f"compare-start: round {number + 1} of {rounds}", file=sys.stderr)

    print(f"| command | in | one, ms | {at_once} at once, ms |\n|---|---|---|---|")
    median = lambda row: f"{1000 * statistics.median(times[row]):.0f}" if row in times else ""
    for command, name in dict.fromkeys((row[0], row[1]) for row in rows):
        cells = [median((command, name, 1)), median((command, name, at_once))]
        print(f"| {command} | {name} | {cells[0]} | {cells[1]} |")
    sleep = [tollgate, "exec", "--", "sleep", "60"]
    print()
    for count in (1, at_once):
        mib = memory_of(sleep, count, environment) / (1 << 20)
        print(f"Memory of each of {count} warm machines: {mib:.0f} MiB (proportional set size)")


main()
