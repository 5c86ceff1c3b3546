"""Machines for programs with asyncio."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Type, Union

from . import _machine, _protocol
from ._errors import TollgateError
from ._protocol import Command, Exchange, Input, Output
from ._result import Result


class _Started:
    """A process that says its name when it is ready, and ends with its standard input."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Started:
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=_machine.HOME,
                start_new_session=True,
            )
            assert process.stdout is not None
            try:
                line = await process.stdout.readline()
            except BaseException:
                await cls(process, "").close()
                raise
            if not line:
                raise _machine.why_not_started(errors, await process.wait())
        return cls(process, line.decode().strip())

    async def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


class AsyncSandbox:
    """A virtual machine that runs commands until it is closed, like `tollgate.Sandbox`, for asyncio.

        async with AsyncSandbox() as box:
            result = await box.run("uname -a")
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
        self._flags: Optional[Sequence[str]] = words
        self._command = _machine.keep_command(words, name, snapshot)
        self._cwd = cwd
        self._machine: Optional[_Started] = None
        self._lease: Optional[asyncio.StreamWriter] = None
        self._socket: Optional[str] = None
        #: The machine's name, and the number of its process, once it is started.
        self.name: Optional[str] = None
        self.pid: Optional[int] = None

    async def start(self) -> AsyncSandbox:
        """Starts the machine, and waits until it is ready."""
        if self._socket is None:
            self._machine = await _Started.start(self._command)
            self.name, self.pid = self._machine.name, self._machine.process.pid
            self._socket = _machine.socket_of(self.pid)
        return self

    async def run(
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
        """Runs a command and waits for its end; `tollgate.Sandbox.run` describes the arguments.

        If this is cancelled, the command is killed.
        """
        task = _protocol.task(command, env=env, cwd=cwd or self._cwd, user=user)
        exchange = Exchange(task, _protocol.encoded(stdin), on_stdout, on_stderr)
        result = await self._exchange(exchange, timeout)
        return result.check() if check else result

    async def write_file(self, path: str, data: Union[str, bytes], *, mode: int = 0o644) -> None:
        """Writes a file of the guest. Folders are made if they are missing."""
        await self.run(["tollgate:put", path, f"{mode:o}"], stdin=data, check=True)

    async def read_file(self, path: str) -> bytes:
        """Reads a file of the guest."""
        return (await self.run(["tollgate:get", path], check=True)).stdout_bytes

    async def snapshot(self, path: str) -> None:
        """Writes the machine's state to a file, as `tollgate.Sandbox.snapshot` does."""
        if self._socket is None:
            raise TollgateError("the sandbox is not started, or is closed")
        reader, writer = await _connected(self._socket)
        try:
            writer.write(_machine.snapshot_request(path))
            _machine.accepted(await _line(reader))
        finally:
            writer.close()

    async def fork(self, *, name: Optional[str] = None) -> AsyncSandbox:
        """A new machine that continues from where this one is, as `tollgate.Sandbox.fork` makes it."""
        if self._flags is None:
            raise TollgateError("a machine of a pool cannot be forked")
        with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
            path = os.path.join(folder, "fork")
            await self.snapshot(path)
            sandbox = AsyncSandbox(cwd=self._cwd)
            sandbox._flags = self._flags
            sandbox._command = _machine.keep_command(self._flags, name, path)
            return await sandbox.start()

    async def close(self) -> None:
        """Ends the machine, with all that runs in it. Another call does nothing."""
        lease, self._lease = self._lease, None
        machine, self._machine = self._machine, None
        self._socket = None
        if lease is not None:
            lease.close()
        if machine is not None:
            await machine.close()

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def _exchange(self, exchange: Exchange, timeout: Optional[float]) -> Result:
        if self._socket is None:
            raise TollgateError("the sandbox is not started, or is closed")
        reader, writer = await _connected(self._socket)
        sender: Optional["asyncio.Task[None]"] = None
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            writer.write(_protocol.REQUEST)
            _machine.accepted(await _line(reader))
            wake = asyncio.Event()
            sender = asyncio.ensure_future(_send(exchange, writer, wake))
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    result = exchange.receive(await asyncio.wait_for(_received(reader), left))
                except asyncio.TimeoutError:
                    if exchange.timed_out:
                        return exchange.give_up()
                    exchange.time_is_over()
                    deadline = time.monotonic() + _protocol.GRACE
                    result = None
                if result is not None:
                    return result
                wake.set()
        finally:
            if sender is not None:
                sender.cancel()
            writer.close()


class AsyncPool:
    """Machines that are ready, like `tollgate.Pool`, for asyncio.

        async with AsyncPool(size=5) as pool:
            async with await pool.take() as box:
                await box.run("true")
    """

    def __init__(
        self, size: int = 5, *, name: Optional[str] = None, warm: Optional[str] = None, **machine: Any
    ) -> None:
        """`machine` are the arguments of `tollgate.Pool` for each machine."""
        arguments = {"memory": None, "network": False, "root": None, "shares": (), "env": None}
        arguments.update({"user": None, "flags": (), "sandbox": False, "allow": None})
        arguments.update({"files": None, "processes": None}, **machine)
        words = _machine.exec_flags(**arguments)  # type: ignore[arg-type]
        warming = [] if warm is None else [f"--warm={warm}"]
        self._command = [_machine.program(), "pool", f"--size={size}", *warming, "--end-with-input", "--", *words]
        self._name = name
        self._process: Optional[_Started] = None
        self._socket: Optional[str] = None

    async def start(self) -> AsyncPool:
        """Starts the pool, and waits until its machines are ready; or finds the one that runs already."""
        if self._name is not None:
            self._socket = _machine.socket_of_pool(self._name)
        elif self._process is None:
            self._process = await _Started.start(self._command)
            self._socket = _machine.socket_of(self._process.process.pid)
        return self

    async def take(self, *, cwd: Optional[str] = None) -> AsyncSandbox:
        """Takes a machine that is ready; another one is started in its place. It ends when it is closed."""
        if self._socket is None:
            raise TollgateError("the pool is not started, or is closed")
        reader, writer = await _connected(self._socket)
        try:
            answer = _machine.accepted(await _line(reader))
        except BaseException:
            writer.close()
            raise
        sandbox = AsyncSandbox(cwd=cwd)
        sandbox._flags = None
        sandbox._lease, sandbox._socket = writer, str(answer["socket"])
        sandbox.name, sandbox.pid = str(answer["name"]), int(str(answer["pid"]))
        return sandbox

    async def close(self) -> None:
        """Ends the pool that this has started, with all of its machines."""
        process, self._process = self._process, None
        self._socket = None
        if process is not None:
            await process.close()

    async def __aenter__(self) -> AsyncPool:
        return await self.start()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()


async def _connected(path: str) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
    try:
        return await asyncio.open_unix_connection(path)
    except OSError as error:
        raise TollgateError(f"the machine does not answer: {error.strerror}") from None


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""


async def _received(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionResetError:
        return b""


async def _send(exchange: Exchange, writer: asyncio.StreamWriter, wake: asyncio.Event) -> None:
    """Sends what can be sent, again each time when `wake` is set."""
    try:
        while True:
            while data := exchange.to_send():
                writer.write(data)
                exchange.sent(len(data))
                await writer.drain()
            wake.clear()
            await wake.wait()
    except ConnectionError:
        # How the command has ended is read elsewhere.
        pass
