"""How a command has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ._errors import CommandFailed


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command.

    The exit code is 128+n if signal n has ended the command, 124 if it took too long, 126 if it cannot be run and
    127 if there is no such command.
    """

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    timed_out: bool = False
    #: Processes that the guest's kernel has killed because its memory was full.
    killed_for_memory: int = 0
    #: The limits of the machine that the command has reached: ``"processes"``, ``"files"``.
    limits_reached: Tuple[str, ...] = ()

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are no UTF-8 are replaced."""
        return self.stderr_bytes.decode(errors="replace")

    def check(self) -> Result:
        """Returns this result, or raises `CommandFailed` if the exit code is not 0."""
        if self.exit_code != 0:
            raise CommandFailed(self)
        return self
