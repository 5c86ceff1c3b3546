"""Runs stress-ng in guests that continue from a snapshot (stress-restored)."""

import os
import random
import subprocess
import sys
import time

from guest import Failure, Guest, keep, run

# The stressors, each of which checks its results with --verify or must at least end well.
STRESSORS = (
    "cpu matrix vecmath vecwide fp funccall funcret regs rotate misaligned opcode nop far-branch "
    "branch icache cache atomic longjmp crypt hash jpeg zlib judy qsort mergesort heapsort radixsort "
    "bsearch tsearch hsearch lsearch tree str wcs memcpy malloc mmap mremap vm stack stackmmap "
    "bigheap fault fork vfork clone pthread pipe switch context sem futex mutex sigsegv sigfpe "
    "sigtrap signest eventfd epoll msg mq poll timer itimer timerfd clock nanosleep getrandom "
    "sysinfo x86cpuid"
).split()
# Those that run at the same time in a guest of `tollgate exec`.
TOGETHER = "cpu matrix vecmath fp crypt hash memcpy vm mmap fork pipe switch sem timer".split()
# Where stress-ng's processes may write.
PLACE = "--temp-path=/tmp"


def in_the_midst(tollgate, kernel, initramfs, work, seconds):
    """Boots a guest, writes it to a snapshot, and continues it from there. It runs the stressors one
    after the other, and is written and restored again and again while it does. Returns how often it
    was restored."""
    socket, snapshot = os.path.join(work, "vm.sock"), os.path.join(work, "vm.snap")
    flags = ["--kernel", kernel, "--initrd", initramfs, "-m", "768M", "--control", socket]
    with Guest(tollgate, "run", *flags, "--append", "console=ttyS0 quiet") as guest:
        guest.wait_for("/root # ")
        keep(tollgate, guest, socket, snapshot)
    loop = (
        f"for s in {' '.join(STRESSORS)}; do stress-ng --$s 1 {PLACE} --timeout {seconds}s --verify "
        '>/tmp/log 2>&1; code=$?; echo "stressor"-$s-$code-; [ $code = 0 ] || cat /tmp/log; done; '
        'echo "all"-done'
    )
    restores, text, typed = 0, "", False
    while True:
        with Guest(tollgate, "run", "--restore", snapshot, "--control", socket) as guest:
            restores += 1
            if not typed:
                guest.type_line(loop)
                guest.wait_for("\n")
                typed = True
            # Some moments are early in a stressor, others late.
            end = time.monotonic() + random.uniform(0.3, 3 * seconds)
            while time.monotonic() < end and "all-done" not in guest.text:
                if not guest.read(end - time.monotonic()):
                    raise Failure(f"the guest ended: {guest.text[-200:]!r}")
            if "all-done" not in guest.text:
                keep(tollgate, guest, socket, snapshot)
        text += guest.text
        if "all-done" in text:
            break
        if restores % 10 == 0:
            done = text.count("stressor-")
            print(f"stress-restored: {done} of {len(STRESSORS)} stressors, {restores} restores", file=sys.stderr)
    for stressor in STRESSORS:
        if f"stressor-{stressor}-0-" not in text:
            after = text.partition(f"stressor-{stressor}-")[2]
            raise Failure(f"{stressor} failed in a restored guest:\n{after[:1000]}")
    if restores < 2:
        raise Failure("the guest ended before it could be restored in the midst of its work")
    return restores


def from_a_template(tollgate, root, work, seconds):
    """Runs stressors at the same time in a guest of `tollgate exec` that continues from a template."""
    environment = {**os.environ, "XDG_CACHE_HOME": os.path.join(work, "cache")}
    environment["XDG_STATE_HOME"] = os.path.join(work, "state")
    templates = os.path.join(work, "cache/tollgate/templates")

    def used():
        found = [entry for entry in os.scandir(templates) if entry.name.endswith(".template")]
        if len(found) != 1:
            raise Failure(f"there are {len(found)} templates after a run of 'tollgate exec', expected 1")
        status = found[0].stat()
        return status.st_ino, status.st_mtime_ns

    def stress(words):
        command = [tollgate, "exec", "--root", root, "-m", "1G", "-n", "--", "/usr/bin/stress-ng", *words]
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr)[-1000:]
            raise Failure(f"stress-ng failed in 'tollgate exec', exit code {done.returncode}:\n{output}")
        return done.stdout

    stress(["--version"])
    before = used()
    numbers = [word for stressor in TOGETHER for word in (f"--{stressor}", "1")]
    stress([*numbers, PLACE, "--vm-bytes=64M", f"--timeout={4 * seconds}s", "--verify"])
    after = used()
    if before[0] != after[0] or before[1] == after[1]:
        raise Failure("the guest did not continue from the template, but booted")


def main():
    tollgate, kernel, initramfs, root, work, seconds = sys.argv[1:]
    seconds = int(seconds)
    loader = os.path.join(root, "lib64/ld-linux-x86-64.so.2")
    libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu") + ":" + os.path.join(root, "lib/x86_64-linux-gnu")
    program = os.path.join(root, "usr/bin/stress-ng")
    version = run(os.path.realpath(loader), "--library-path", libraries, program, "--version").split(" (")[0]
    try:
        restores = in_the_midst(tollgate, kernel, initramfs, work, seconds)
        print(f"{version}: {len(STRESSORS)} stressors of {seconds} s with --verify in a guest that was "
              f"restored {restores} times in the midst of them: all passed")
        print(f"    {' '.join(STRESSORS)}")
        from_a_template(tollgate, root, work, seconds)
        print(f"{version}: {len(TOGETHER)} stressors together for {4 * seconds} s with --verify in a guest "
              "of 'tollgate exec' that continued from a template: all passed")
        print(f"    {' '.join(TOGETHER)}")
    except Failure as failure:
        sys.exit(f"stress-restored: error: {failure}")


main()
