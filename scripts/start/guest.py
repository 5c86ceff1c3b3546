"""A virtual machine whose serial console a script reads and types on, and its snapshots."""

import os
import select
import subprocess
import time

# How long a guest may take for one step: the host may be busy.
PATIENCE = 300


class Failure(Exception):
    """Something did not happen; the text is one line that says what."""


class Guest:
    """A running machine, whose standard streams are its serial console."""

    def __init__(self, *command):
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.text = ""
        self.commands = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def read(self, patience):
        """Reads what the guest has written; returns false at its end. Waits at most `patience`
        seconds for something."""
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], max(patience, 0))[0]:
            return True
        part = os.read(descriptor, 1 << 16)
        self.text += part.decode(errors="replace").replace("\r", "")
        return part != b""

    def wait_for(self, awaited, patience=PATIENCE):
        """Waits for a text, and returns what came before it. What follows it stays unread."""
        end = time.monotonic() + patience
        while awaited not in self.text:
            last = self.text[-200:]
            if not self.read(end - time.monotonic()):
                raise Failure(f"the guest ended before it wrote {awaited!r}: {last!r}")
            if time.monotonic() > end:
                raise Failure(f"the guest did not write {awaited!r} in {patience} s: {last!r}")
        before, _, self.text = self.text.partition(awaited)
        return before

    def type_line(self, line):
        """Types a line."""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def shell(self, command):
        """Has the guest's shell run a command, and returns the lines that it wrote."""
        self.commands += 1
        # The echo of what is typed does not have the mark.
        mark = f"done-{self.commands}-"
        self.type_line(f"{command}; echo \"done\"-{self.commands}-$?-")
        text = self.wait_for(mark)
        code = self.wait_for("-\n")
        if code != "0":
            raise Failure(f"'{command}' failed in the guest with exit code {code}: {text[-200:]!r}")
        return text.split("\n", 1)[-1]

    def wait(self):
        """Waits for the machine's end."""
        end = time.monotonic() + PATIENCE
        while self.read(end - time.monotonic()):
            if time.monotonic() > end:
                raise Failure("the machine did not end")
        if self.process.wait() != 0:
            raise Failure(f"the machine failed: {self.text[-200:].strip()!r}")


def run(*command):
    """Runs a command that must succeed, and returns what it wrote."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def keep(tollgate, guest, socket, snapshot):
    """Writes a machine to a snapshot and ends the machine."""
    run(tollgate, "snapshot", "create", socket, snapshot, "--then", "quit")
    guest.wait()
