"""Machines for ordinary programs."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Mapping, Optional, Sequence, Type, Union

from . import _machine, _protocol
from ._errors import TollgateError
from ._protocol import Command, Exchange, Input, Output
from ._result import Result


class Sandbox:
    """A virtual machine that runs commands until it is closed.

    The guest sees this host's files, except for what is given as `root`, and can change none of them: changes are
    kept in the guest's memory until the sandbox is closed. Files that you may read the guest may read too. Code that
    you do not trust gets `sandbox=True` and a `root`: then it sees nothing of this host.

    Methods may be called from several threads at once: each command has a connection of its own.

    :param memory: the guest's memory, such as ``"512M"``; the default is 1G. It is taken as it is used.
    :param network: whether the guest reaches the network; or the value of ``tollgate exec --net``.
    :param root: a directory with another system for the guest's root.
    :param shares: directories of this host, ``DIR[:PATH][,ro]``, which the guest may change without ``,ro``.
    :param env: variables of all commands.
    :param cwd: the directory in which commands start.
    :param user: the user who runs commands; the default is you.
    :param name: the machine's name for ``tollgate ps`` and ``tollgate exec --in``.
    :param flags: more flags of ``tollgate exec``.
    :param sandbox: give the guest nothing of this host, and limits; ``tollgate exec --sandbox`` says what that is. It
        needs a `root`, and `shares` need ``,ro``.
    :param allow: what the guest reaches of the network, and nothing else: ``["pypi.org:443", "10.0.0.0/8"]``. An empty
        list allows nothing.
    :param files: the most memory for files, such as ``"256M"``.
    :param processes: the most processes of all commands together.
    :param snapshot: a file that `snapshot` has written of a sandbox with the same arguments, to continue from.
    """

    def __init__(
        self,
        *,
        memory: Optional[str] = None,
        network: Union[bool, str] = False,
        root: Optional[str] = None,
        shares: Sequence[str] = (),
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        name: Optional[str] = None,
        flags: Sequence[str] = (),
        sandbox: bool = False,
        allow: Optional[Sequence[str]] = None,
        files: Optional[str] = None,
        processes: Optional[int] = None,
        snapshot: Optional[str] = None,
    ) -> None:
        words = _machine.exec_flags(
            memory=memory,
            network=network,
            root=root,
            shares=shares,
            env=env,
            user=user,
            flags=flags,
            sandbox=sandbox,
            allow=allow,
            files=files,
            processes=processes,
        )
        self._start(words, name, cwd, snapshot)

    def _start(self, words: Sequence[str], name: Optional[str], cwd: Optional[str], snapshot: Optional[str]) -> None:
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._lease: Optional[socket.socket] = None
        self._cwd = cwd
        self._flags: Optional[Sequence[str]] = words
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                _machine.keep_command(words, name, snapshot),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Elsewhere the current directory would be shared.
                cwd=_machine.HOME,
                # Ctrl-C is for this program, which closes its machines.
                start_new_session=True,
            )
            self._process = process
            assert process.stdout is not None
            with process.stdout as output:
                line = output.readline()
            if not line:
                code = process.wait()
                self.close()
                raise _machine.why_not_started(errors, code)
        #: The machine's name.
        self.name = line.decode().strip()
        #: The number of the machine's process.
        self.pid = process.pid
        self._socket = _machine.socket_of(process.pid)

    @classmethod
    def _leased(cls, lease: socket.socket, answer: Mapping[str, object], cwd: Optional[str]) -> Sandbox:
        """A machine of a pool."""
        sandbox = cls.__new__(cls)
        sandbox._process, sandbox._lease, sandbox._cwd, sandbox._flags = None, lease, cwd, None
        sandbox.name, sandbox._socket = str(answer["name"]), str(answer["socket"])
        sandbox.pid = int(str(answer["pid"]))
        return sandbox

    def run(
        self,
        command: Command,
        *,
        stdin: Input = None,
        timeout: Optional[float] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        check: bool = False,
        on_stdout: Optional[Output] = None,
        on_stderr: Optional[Output] = None,
    ) -> Result:
        """Runs a command and waits for its end.

        :param command: words, or a string for the shell.
        :param stdin: its standard input.
        :param timeout: seconds; then the command gets SIGTERM, and two seconds later it is killed. The exit code is 124.
        :param env: variables in addition to the machine's.
        :param cwd: the directory in which it starts.
        :param user: the user who runs it.
        :param check: raise `CommandFailed` if its exit code is not 0.
        :param on_stdout: called with each piece of output as it comes, which is then not in the result.
        :param on_stderr: the same for standard error.
        """
        task = _protocol.task(command, env=env, cwd=cwd or self._cwd, user=user)
        result = self._exchange(Exchange(task, _protocol.encoded(stdin), on_stdout, on_stderr), timeout)
        return result.check() if check else result

    def write_file(self, path: str, data: Union[str, bytes], *, mode: int = 0o644) -> None:
        """Writes a file of the guest. Folders are made if they are missing."""
        self.run(["tollgate:put", path, f"{mode:o}"], stdin=data, check=True)

    def read_file(self, path: str) -> bytes:
        """Reads a file of the guest."""
        return self.run(["tollgate:get", path], check=True).stdout_bytes

    def snapshot(self, path: str) -> None:
        """Writes the machine's state to a file; ``Sandbox(snapshot=path)`` continues from it, any number of times.

        Call this while no command runs. The file holds the guest's memory, with all its secrets.
        """
        self._open()
        with connected(self._socket) as connection:
            sent(connection, _machine.snapshot_request(path))
            _machine.accepted(read_line(connection))

    def fork(self, *, name: Optional[str] = None) -> Sandbox:
        """A new machine that continues from where this one is. Call this while no command runs."""
        if self._flags is None:
            raise TollgateError("a machine of a pool cannot be forked")
        with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
            path = os.path.join(folder, "fork")
            self.snapshot(path)
            sandbox = type(self).__new__(type(self))
            # Memory that it only reads remains that of the file, which needs no name.
            sandbox._start(self._flags, name, self._cwd, path)
            return sandbox

    def close(self) -> None:
        """Ends the machine, with all that runs in it. Another call does nothing."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None or getattr(self, "_lease", None) is not None:
            self.close()

    def _open(self) -> None:
        if self._process is None and self._lease is None:
            raise TollgateError("the sandbox is closed")

    def _exchange(self, exchange: Exchange, timeout: Optional[float]) -> Result:
        self._open()
        deadline = None if timeout is None else time.monotonic() + timeout
        with connected(self._socket) as connection:
            sent(connection, _protocol.REQUEST)
            _machine.accepted(read_line(connection))
            connection.setblocking(False)
            poll = select.poll()
            while True:
                waiting = exchange.to_send()
                poll.register(connection, select.POLLIN | (select.POLLOUT if waiting else 0))
                left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
                events = dict(poll.poll(left)).get(connection.fileno(), 0)
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    result = exchange.receive(received(connection))
                    if result is not None:
                        return result
                if events & select.POLLOUT:
                    exchange.sent(sent(connection, waiting))
                if deadline is not None and time.monotonic() >= deadline:
                    if exchange.timed_out:
                        return exchange.give_up()
                    exchange.time_is_over()
                    deadline = time.monotonic() + _protocol.GRACE


class Pool:
    """Machines that are ready, from ``tollgate pool``: either a new one, or one that runs already.

    :param size: how many machines are ready.
    :param name: the name of a pool that runs already, which others may share.
    :param warm: a command for the guest's shell that each machine runs before it is ready, such as
        ``"python3 -c pass"``; the next one like it takes less time.
    """

    def __init__(
        self,
        size: int = 5,
        *,
        name: Optional[str] = None,
        warm: Optional[str] = None,
        memory: Optional[str] = None,
        network: Union[bool, str] = False,
        root: Optional[str] = None,
        shares: Sequence[str] = (),
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        flags: Sequence[str] = (),
        sandbox: bool = False,
        allow: Optional[Sequence[str]] = None,
        files: Optional[str] = None,
        processes: Optional[int] = None,
    ) -> None:
        self._process: Optional["subprocess.Popen[bytes]"] = None
        if name is not None:
            self._socket = _machine.socket_of_pool(name)
            return
        words = _machine.exec_flags(
            memory=memory,
            network=network,
            root=root,
            shares=shares,
            env=env,
            user=user,
            flags=flags,
            sandbox=sandbox,
            allow=allow,
            files=files,
            processes=processes,
        )
        warming = [] if warm is None else [f"--warm={warm}"]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [_machine.program(), "pool", f"--size={size}", *warming, "--end-with-input", "--", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=_machine.HOME,
                start_new_session=True,
            )
            self._process = process
            assert process.stdout is not None
            with process.stdout as output:
                line = output.readline()
            if not line:
                code = process.wait()
                self.close()
                raise _machine.why_not_started(errors, code)
        self._socket = _machine.socket_of(process.pid)

    def take(self, *, cwd: Optional[str] = None) -> Sandbox:
        """Takes a machine that is ready; another one is started in its place. It ends when it is closed."""
        lease = connected(self._socket)
        try:
            answer = _machine.accepted(read_line(lease))
        except BaseException:
            lease.close()
            raise
        return Sandbox._leased(lease, answer, cwd)

    def close(self) -> None:
        """Ends the pool that this has started, with all of its machines."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


def connected(path: str) -> socket.socket:
    """A connection to a socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise TollgateError(f"the machine does not answer: {os.strerror(error.errno or 0)}") from None
    return connection


def read_line(connection: socket.socket) -> bytes:
    """Reads one line and nothing behind it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = received(connection, 1)
        if not byte:
            break
        line += byte
    return line


def received(connection: socket.socket, most: int = 65536) -> bytes:
    """What has come; empty at the end."""
    try:
        return connection.recv(most)
    except ConnectionResetError:
        return b""


def sent(connection: socket.socket, data: bytes) -> int:
    """Sends what the other side takes now. How the command has ended is read later if it has gone."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return len(data)
