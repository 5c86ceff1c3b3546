"""What can go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._result import Result


class TollgateError(Exception):
    """A machine cannot be started, or does not do what it is asked to; the message is one line."""


class CommandFailed(TollgateError):
    """A command ended with another exit code than 0, and `check` was given."""

    def __init__(self, result: Result) -> None:
        why = "took too long" if result.timed_out else f"ended with code {result.exit_code}"
        last = result.stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"the command {why}", *last]))
        self.result = result
