#!/usr/bin/env python3
"""How long sandboxes take from Python: python3 sandbox_times.py [--runs N] [--pooled N] [--idle N] [--python PATH]

It prints the median and the 99th percentile of a whole sandbox for one command, `python3 -c 'print(1)'`: from a warm
start, from a pool, and from a pool whose machines have run Python before. `python3` must be a program: if it is a
script, as pyenv installs it, then the shell that runs the script is what is measured. Then it keeps sandboxes that have nothing to do and prints the processor time that they take.
The first sandbox, which makes the template, is not counted. What the host did in the meantime is printed too: the
load, and the share of processor time that other programs have taken.
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from tollgate import Pool, Sandbox  # noqa: E402

COMMAND = ["python3", "-c", "print(1)"]


def is_script(program: str) -> bool:
    path = shutil.which(program)
    if path is None:
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def check(sandbox: Sandbox) -> None:
    result = sandbox.run(COMMAND)
    if result.stdout != "1\n":
        sys.exit(f"the command failed: {result}")


def whole() -> None:
    with Sandbox() as sandbox:
        check(sandbox)


def timed(what: str, runs: int, action: Callable[[], None], pause: float = 0) -> None:
    before, used = time.monotonic(), times_of_host()
    times: List[float] = []
    for _ in range(runs):
        time.sleep(pause)
        begin = time.monotonic()
        action()
        times.append((time.monotonic() - begin) * 1000)
    times.sort()
    # The smallest value that at least 99 of 100 do not exceed.
    p99 = times[min(runs - 1, math.ceil(runs * 0.99) - 1)]
    print(
        f"{what}: median {times[runs // 2]:.0f} ms, p99 {p99:.0f} ms, least {times[0]:.0f} ms, most {times[-1]:.0f} ms"
        f" of {runs}; {busyness(before, used)}",
        flush=True,
    )


def times_of_host() -> List[int]:
    """Ticks of the host's processors: busy, and all."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return [sum(fields) - fields[3] - fields[4], sum(fields)]


def busyness(before: float, used: List[int]) -> str:
    busy, everything = (after - earlier for after, earlier in zip(times_of_host(), used))
    seconds = time.monotonic() - before
    processors = os.cpu_count() or 1
    share = 100 * busy / max(everything, 1)
    return f"{seconds:.0f} s, {processors} processors {share:.0f} % busy with all programs, load {os.getloadavg()[0]:.1f}"


def ticks(pids: List[int]) -> int:
    """Processor time of these processes, in ticks."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


def idle(count: int, seconds: float) -> None:
    sandboxes: List[Sandbox] = []
    try:
        for _ in range(count):
            sandboxes.append(Sandbox(memory="256M"))
        for sandbox in sandboxes:
            check(sandbox)
        # Interpreters and the guests' own work after a start come to an end.
        time.sleep(10)
        pids = [sandbox.pid for sandbox in sandboxes]
        before, begin = ticks(pids), time.monotonic()
        time.sleep(seconds)
        used = (ticks(pids) - before) / os.sysconf("SC_CLK_TCK")
        elapsed = time.monotonic() - begin
        print(f"{count} kept idle: {used:.2f} s of processor time in {elapsed:.0f} s, {100 * used / elapsed:.2f} % of one")
    finally:
        for sandbox in sandboxes:
            sandbox.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="sandboxes from a warm start (500)")
    parser.add_argument("--pooled", type=int, default=50, help="sandboxes from a pool (50); 0 measures none")
    parser.add_argument("--pause", type=float, default=1.5, help="seconds before each of these (1.5)")
    parser.add_argument("--idle", type=int, default=100, help="sandboxes that are kept (100); 0 measures none")
    parser.add_argument("--python", default="python3", help="the interpreter in the guest (python3)")
    parser.add_argument("--seconds", type=float, default=20, help="how long the kept ones are watched (20)")
    arguments = parser.parse_args()
    COMMAND[0] = arguments.python
    if is_script(COMMAND[0]):
        sys.exit(f"{COMMAND[0]} is a script here; give the interpreter itself: --python /usr/bin/python3")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        whole()
        if arguments.runs:
            timed("Sandbox().run(python3)", arguments.runs, whole)
        for warm in [None, f"{COMMAND[0]} -c pass"] if arguments.pooled else []:
            with Pool(size=4, warm=warm) as pool:

                def from_pool() -> None:
                    with pool.take() as sandbox:
                        check(sandbox)

                # The pool starts one machine after the other. The pause lets it have one that is ready.
                what = "from a pool" if warm is None else f"from a pool --warm '{warm}'"
                timed(what, arguments.pooled, from_pool, arguments.pause)
        if arguments.idle:
            idle(arguments.idle, arguments.seconds)


if __name__ == "__main__":
    main()
