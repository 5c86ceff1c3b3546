"""How much host code stands for the instructions of a program: what Tollgate counts while it runs.

Tollgate counts with --count-instructions, and reports over its control socket; the difference
between a row's end and its beginning is the row's, of all its runs and of the kernel's part.
"""

import json
import socket

# The seconds that an answer may take.
PATIENCE = 30


def ask(path, command):
    """Sends a command to a machine and returns its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE)
        client.connect(path)
        client.sendall(json.dumps({"command": command}).encode() + b"\n")
        with client.makefile("rb") as answers:
            return json.loads(answers.readline())


def counts(answer):
    """Returns (guest instructions, host instructions, their bytes) of an answer to `stats`."""
    stats = answer["stats"]
    code = stats["host_code"]
    return stats["instructions"], code["instructions"], code["bytes"]


class Counter:
    """Counts of the rows of one run.

    ask: a function that returns the present counts.
    """

    def __init__(self, ask_counts):
        self.ask, self.begun, self.rows = ask_counts, {}, []

    def begin(self, row):
        self.begun[row] = self.ask()

    def end(self, row):
        before = self.begun.pop(row, None)
        if before is None:
            return
        counted = [now - then for now, then in zip(self.ask(), before)]
        for index, (name, earlier) in enumerate(self.rows):
            if name == row:
                self.rows[index] = row, [one + other for one, other in zip(earlier, counted)]
                return
        self.rows.append((row, counted))


def table(rows):
    """Returns the rows as text, and their sum."""
    lines = [f"{'row':18} {'guest instructions':>18} {'host, for each':>15} {'bytes, for each':>16}"]
    total = [sum(counted[index] for _, counted in rows) for index in range(3)]
    for name, (guest, host, size) in [*rows, ("all", total)]:
        if guest:
            lines.append(f"{name:18} {guest:>18,} {host / guest:>15.2f} {size / guest:>16.1f}")
    return "\n".join(lines)
