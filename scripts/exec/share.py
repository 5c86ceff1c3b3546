"""Measures what operations on files cost natively and on exec's shares, and which requests they send
(compare-share)."""

import json
import os
import shutil
import statistics
import subprocess
import sys


def make_tree(folder):
    """Makes the files that the program reads: three trees of 5,000 files, a large folder, a large file."""
    for tree in ("tree", "find", "list"):
        for name in range(50):
            os.makedirs(f"{folder}/{tree}/{name}")
            for file in range(100):
                with open(f"{folder}/{tree}/{name}/{file}", "wb") as new:
                    new.write(b"x" * 1000)
    os.mkdir(f"{folder}/many")
    for name in range(1000):
        open(f"{folder}/many/entry-{name}", "wb").close()
    with open(f"{folder}/large", "wb") as new:
        new.write(os.urandom(1 << 20) * 64)


def processor_time(process):
    """Returns the processor time of all threads so far, in nanoseconds."""
    total = 0
    for task in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def run(command, tollgate, control, folder):
    """Returns the steps by their names: [operations, ns, processor ns, requests by kind]."""
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def requests():
        if not control:
            return {}
        asked = [tollgate, "stats", control, "--format", "json"]
        answer = subprocess.run(asked, stdout=subprocess.PIPE, check=True)
        return json.loads(answer.stdout).get("share_requests", {})

    steps, step, operations, before, begun = {}, None, None, {}, 0
    for line in process.stdout:
        word, rest = line.rstrip("\n").split(" ", 1)
        if word == "ready":
            step, operations = rest.rsplit(" ", 1)
            before = requests()
            begun = processor_time(process.pid)
            process.stdin.write("go\n")
            process.stdin.flush()
        else:
            used = processor_time(process.pid) - begun
            after = requests()
            counts = {kind: count - before.get(kind, 0) for kind, count in after.items()}
            steps[step] = (int(operations), int(rest), used, counts)
    if process.wait() != 0:
        sys.exit(f"compare-share: the work failed: {command[:4]}")
    return steps


def main():
    tollgate, program, work, rounds, *flags = sys.argv[1:]
    control = f"{work}/control"
    exec_prefix = [tollgate, "exec", "--control", control, *flags, "--"]
    # The current directory is a writable share; everything else is the root.
    here, root = f"{work}/here", f"{work}/root"
    for folder in (here, root):
        os.mkdir(folder)
    make_tree(root)
    make_tree(here)
    places = {
        "native": ([program, root, "write"], None, here),
        "root": ([*exec_prefix, program, root], control, here),
        "here": ([*exec_prefix, program, here, "write"], control, here),
    }
    results = {name: [] for name in places}
    for number in range(int(rounds)):
        for name, (command, socket, folder) in places.items():
            results[name].append(run(command, tollgate, socket, folder))
            print(f"compare-share: round {number + 1}, {name}: done", file=sys.stderr)
    for folder in (here, root):
        shutil.rmtree(folder)

    print("| operation | native, us | root, us | root, processor us | its requests | current directory, us | processor us | its requests |")
    print("|---|---|---|---|---|---|---|---|")
    for step, (operations, *_) in results["native"][0].items():
        cells = [step]
        for name, runs in results.items():
            if step not in runs[0]:
                cells += ["-"] * 3
                continue
            middle = [statistics.median(it[step][which] for it in runs) / operations / 1000 for which in (1, 2)]
            cells += [f"{middle[0]:.2f}"]
            if name == "native":
                continue
            kinds = sorted(runs[-1][step][3].items(), key=lambda row: -row[1])
            counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count)
            cells += [f"{middle[1]:.2f}", counts or "none"]
        print(f"| {' | '.join(cells)} |")


main()
