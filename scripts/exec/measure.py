"""Runs the same work natively and by 'tollgate exec', and prints what each took (compare-exec).

A shell script does the work, step by step, and says on standard output when a step has ended. At
each such line the processor time so far is read: natively that of the shell's children, which the
shell itself reads from /proc; for a guest that of the process tollgate.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time

TICK = 1 / os.sysconf("SC_CLK_TCK")

# `mark NAME` ends a step. Fields 16 and 17 of /proc/PID/stat are the processor times of children
# that have ended.
SCRIPT = r"""
mark() {
    read -r stat </proc/$$/stat
    set -- "$1" ${stat##*) }
    echo "mark $1 $((${15} + ${16}))"
}
twenty() { n=0; while [ $n -lt 20 ]; do "$@"; n=$((n + 1)); done; }
mark begin
twenty gcc -O2 -c small.c -o small.o; mark "gcc-c-1"
twenty gcc -O2 -c small.c -o small.o; mark "gcc-c-2"
twenty gcc -O2 -c small.c -o small.o; mark "gcc-c-3"
(cd hello && ./configure >configure.out 2>&1); mark "configure"
commands() { n=0; while [ $n -lt $COMMANDS ]; do /bin/true; n=$((n + 1)); done; }
commands; mark "commands-1"
commands; mark "commands-2"
twenty "$PYTHON" -c pass; mark "python3-1"
twenty "$PYTHON" -c pass; mark "python3-2"
"""

SMALL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry { char name[32]; int value; };

static int by_value(const void *a, const void *b)
{
    return ((const struct entry *)a)->value - ((const struct entry *)b)->value;
}

int sorted(struct entry *entries, size_t count, const char *name)
{
    qsort(entries, count, sizeof *entries, by_value);
    for (size_t at = 0; at < count; at++)
        if (strcmp(entries[at].name, name) == 0)
            return printf("%s is number %zu\n", name, at);
    return -1;
}
"""

NAMES = {
    "start": "start of the guest, and `true`",
    "gcc-c-1": "`gcc -c`, the first twenty",
    "gcc-c-2": "`gcc -c`, the second twenty",
    "gcc-c-3": "`gcc -c`, the third twenty",
    "configure": "`./configure` of GNU hello",
    "commands-1": "{commands} commands of a shell script, first",
    "commands-2": "{commands} commands of a shell script, again",
    "python3-1": "`python3 -c pass`, the first twenty",
    "python3-2": "`python3 -c pass`, the second twenty",
}


def processor_seconds(process):
    """The processor time of a process so far."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def measure(prefix, folder, environment, is_guest):
    """Returns the steps by their names: (processor seconds, elapsed seconds)."""
    command = [*prefix, "/bin/sh", "-c", SCRIPT]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    steps, before = {}, None
    for line in process.stdout:
        word, name, ticks = line.split()
        assert word == "mark", line
        used = processor_seconds(process.pid) if is_guest else int(ticks) * TICK
        now = (used, time.monotonic())
        if before:
            steps[name] = (now[0] - before[0], now[1] - before[1])
        before = now
    if process.wait() != 0 or len(steps) != len(NAMES) - 1:
        sys.exit(f"compare-exec: the work failed: {command[:4]}")
    return steps


def measure_start(prefix, folder, environment):
    """Measures a guest that does nothing."""
    usage, begin = os.times(), time.monotonic()
    subprocess.run([*prefix, "true"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=True)
    after = os.times()
    used = after.children_user + after.children_system - usage.children_user - usage.children_system
    return used, time.monotonic() - begin


def main():
    tollgate, source, work, rounds, commands, python, system, image, _, *flags = sys.argv[1:]
    environment = {**os.environ, "COMMANDS": commands, "PYTHON": python}

    def guest(python, *more):
        passed = [f"--env=COMMANDS={commands}", f"--env=PYTHON={python}"]
        return [tollgate, "exec", *passed, *more, *flags, "--"]

    arms = {"native": [], "exec": guest(python)}
    if system:
        arms["exec --root"] = guest("/usr/bin/python3", "--root", system)
        arms["exec --image"] = guest("/usr/bin/python3", "--image", image)
    results = {name: {} for name in arms}
    for number in range(int(rounds)):
        for name, prefix in arms.items():
            folder = os.path.join(work, "here")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, os.path.join(folder, "hello"), symlinks=True)
            with open(os.path.join(folder, "small.c"), "w") as file:
                file.write(SMALL)
            if prefix:
                results[name].setdefault("start", []).append(measure_start(prefix, folder, environment))
            for step, times in measure(prefix, folder, environment, bool(prefix)).items():
                results[name].setdefault(step, []).append(times)
            print(f"compare-exec: round {number + 1}, {name}: done", file=sys.stderr)

    for which, what in ((0, "processor s"), (1, "s by the clock")):
        print(f"| work, {what} | " + " | ".join(arms) + " |")
        print("|---" * (len(arms) + 1) + "|")
        for step, text in NAMES.items():
            cells = []
            for name in arms:
                times = results[name].get(step)
                value = statistics.median(it[which] for it in times) if times else None
                own = results["native"].get(step)
                own = statistics.median(it[which] for it in own) if own else 0
                if value is None:
                    cells.append("-")
                elif arms[name] and own > 0:
                    cells.append(f"{value:.2f} ({value / own:.1f})")
                else:
                    cells.append(f"{value:.2f}")
            print(f"| {text.format(commands=f'{int(commands):,}')} | {' | '.join(cells)} |")
        print()


main()
