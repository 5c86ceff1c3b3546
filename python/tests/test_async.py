"""What a sandbox does for programs with asyncio."""

import asyncio

import pytest

from tollgate import AsyncPool, AsyncSandbox, TollgateError


def test_a_command_has_streams_and_a_code() -> None:
    async def work() -> None:
        async with AsyncSandbox() as box:
            result = await box.run("cat; echo error >&2; exit 3", stdin="input\n")
            assert (result.exit_code, result.stdout, result.stderr) == (3, "input\n", "error\n")
            data = b"0123456789abcdef" * 100_000
            assert (await box.run(["cat"], stdin=data)).stdout_bytes == data
            await box.write_file("/tmp/a", "text")
            async with await box.fork() as fork:
                assert await fork.read_file("/tmp/a") == b"text"
            assert await box.read_file("/tmp/a") == b"text"
            result = await box.run("sleep 1000", timeout=0.5)
            assert (result.exit_code, result.timed_out) == (124, True)
        with pytest.raises(TollgateError, match="closed"):
            await box.run("true")

    asyncio.run(work())


def test_a_command_that_is_cancelled_is_killed() -> None:
    async def work() -> None:
        async with AsyncSandbox() as box:
            task = asyncio.ensure_future(box.run("sleep 1234"))
            while "sleep" not in (await box.run("cat /proc/[0-9]*/comm")).stdout:
                await asyncio.sleep(0.05)
            task.cancel()
            while "sleep" in (await box.run("cat /proc/[0-9]*/comm")).stdout:
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_twenty_sandboxes_at_once() -> None:
    async def one(number: int) -> str:
        async with AsyncSandbox(memory="256M") as box:
            return (await box.run(f"echo {number}")).stdout

    async def work() -> None:
        outputs = await asyncio.gather(*(one(number) for number in range(20)))
        assert outputs == [f"{number}\n" for number in range(20)]

    asyncio.run(work())


def test_a_pool_hands_out_machines() -> None:
    async def work() -> None:
        async with AsyncPool(size=2, memory="256M") as pool:
            for _ in range(3):
                async with await pool.take() as box:
                    assert (await box.run("echo pool")).stdout == "pool\n"

    asyncio.run(work())
