"""The protocol of a machine that runs commands: docs/reference/control-socket.md, "Commands in the guest".

This does no input or output. `Exchange` makes the bytes to send and takes those that were received.
"""

from __future__ import annotations

import os
import struct
from typing import Callable, Mapping, Optional, Sequence, Tuple, Union

from ._errors import TollgateError
from ._result import Result

Command = Union[str, Sequence[Union[str, bytes]]]
Input = Union[str, bytes, None]
Output = Callable[[bytes], object]

#: What begins a command on a control socket.
REQUEST = b'{"command":"exec"}\n'
#: The most bytes of input that the command has not taken.
WINDOW = 256 << 10
#: The most bytes of a frame's rest.
MOST = (16 << 10) - 4
TIMED_OUT = 124
#: The limits that a command may reach, by their bits.
LIMITS = {1: "processes", 2: "files"}
SIGTERM = 15
SIGKILL = 9
#: How long a command may take to end after SIGTERM.
GRACE = 2.0


def frame(kind: bytes, rest: bytes = b"") -> bytes:
    """A kind, the length of the rest, and the rest."""
    return kind + struct.pack("<I", len(rest)) + rest


def signal(number: int) -> bytes:
    """Sends the command a signal."""
    return frame(b"s", struct.pack("<i", number))


def task(
    command: Command,
    *,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    user: Optional[str] = None,
) -> bytes:
    """Describes a command. A string is one for the shell."""
    words = ["sh", "-c", command] if isinstance(command, str) else list(command)
    if not words:
        raise ValueError("a command needs a word")
    records = [("argument", os.fsencode(word)) for word in words]
    records += [("variable", os.fsencode(f"{name}={value}")) for name, value in (env or {}).items()]
    if cwd is not None:
        records.append(("directory", os.fsencode(cwd)))
    if user is not None:
        records.append(("user", user.encode()))
    whole = b""
    for word, value in records:
        if b"\0" in value:
            raise ValueError(f"no zero byte may be in a command's {word}")
        whole += word.encode() + b" " + value + b"\0"
    pieces = [whole[at : at + MOST] for at in range(0, len(whole), MOST)]
    return b"".join(frame(b"k", piece) for piece in [*pieces, b""])


def encoded(data: Input) -> bytes:
    """Input as bytes."""
    return data.encode() if isinstance(data, str) else data or b""


class Exchange:
    """What passes between a program and a machine about one command."""

    def __init__(
        self,
        task: bytes,
        data: bytes,
        on_stdout: Optional[Output] = None,
        on_stderr: Optional[Output] = None,
    ) -> None:
        self._to_send = bytearray(task)
        self._data = memoryview(data)
        self._data_is_sent = False
        self._credit = WINDOW
        self._received = bytearray()
        self._kept: "tuple[list[bytes], list[bytes]]" = ([], [])
        self._take = (on_stdout or self._kept[0].append, on_stderr or self._kept[1].append)
        #: Whether the command has been told that its time is over.
        self.timed_out = False
        self.result: Optional[Result] = None

    def to_send(self) -> bytes:
        """What can be sent now."""
        while self._data and self._credit and len(self._to_send) < WINDOW:
            piece = self._data[: min(MOST, self._credit)]
            self._credit -= len(piece)
            self._data = self._data[len(piece) :]
            self._to_send += frame(b"0", bytes(piece))
        if not self._data and not self._data_is_sent:
            self._data_is_sent = True
            self._to_send += frame(b"0")
        return bytes(self._to_send[:65536])

    def sent(self, count: int) -> None:
        """Notes that the first bytes of these were sent."""
        del self._to_send[:count]

    def time_is_over(self) -> None:
        """Tells the command so."""
        self.timed_out = True
        self._to_send += signal(SIGTERM)

    def receive(self, data: bytes) -> Optional[Result]:
        """Takes received bytes. Returns the result if the command has ended."""
        if not data:
            raise TollgateError("the machine has ended before the command did")
        self._received += data
        while len(self._received) >= 5 and self.result is None:
            (length,) = struct.unpack_from("<I", self._received, 1)
            if len(self._received) < 5 + length:
                break
            kind, rest = self._received[0], bytes(self._received[5 : 5 + length])
            del self._received[: 5 + length]
            self._hear(kind, rest)
        return self.result

    def _hear(self, kind: int, rest: bytes) -> None:
        if kind in b"12":
            self._take[kind - ord("1")](rest)
        elif kind == ord("g"):
            self._credit += struct.unpack("<cI", rest)[1]
        elif kind == ord("e"):
            code, _, _, killed, reached = struct.unpack("<BQQIB", rest)
            limits = tuple(name for bit, name in LIMITS.items() if reached & bit)
            self._end(TIMED_OUT if self.timed_out else code, killed, limits)
        elif kind == ord("f"):
            why = rest[1:].decode(errors="replace")
            self._take[1](f"tollgate: {why}\n".encode())
            self._end(rest[0])
        elif kind != ord("r"):
            raise TollgateError("the machine does not keep to the protocol")

    def _end(self, code: int, killed: int = 0, limits: Tuple[str, ...] = ()) -> None:
        output, errors = (b"".join(pieces) for pieces in self._kept)
        self.result = Result(code, output, errors, self.timed_out, killed, limits)

    def give_up(self) -> Result:
        """The result of a command that does not end: it is killed when the connection closes."""
        self.timed_out = True
        self._end(TIMED_OUT)
        assert self.result is not None
        return self.result
