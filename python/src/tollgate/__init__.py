"""Runs commands in virtual machines without KVM, root or a kernel module.

    from tollgate import Sandbox

    with Sandbox() as box:
        print(box.run("python3 -c 'print(1)'").stdout)

`Sandbox` is for ordinary programs, `AsyncSandbox` for asyncio, and `Pool` and `AsyncPool` hand out machines that
are ready already.
"""

from ._async import AsyncPool, AsyncSandbox
from ._errors import CommandFailed, TollgateError
from ._result import Result
from ._sandbox import Pool, Sandbox

__all__ = [
    "AsyncPool",
    "AsyncSandbox",
    "CommandFailed",
    "Pool",
    "Result",
    "Sandbox",
    "TollgateError",
]
