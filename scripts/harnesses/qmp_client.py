"""Controls a machine by QMP with the package qemu.qmp: status, pause, reset, power button, quit."""

import asyncio
import subprocess
import sys
import time

from qemu.qmp import ExecuteError, QMPClient


async def run(qemu, guests, work):
    socket = f"{work}/qmp"
    began = time.monotonic()
    client = QMPClient("example")
    machine = subprocess.Popen(
        [qemu, "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "256", "-nodefaults", "-display", "none",
         "-kernel", f"{guests}/debian-amd64/vmlinuz", "-initrd", f"{guests}/initrd-amd64.img",
         "-append", "console=ttyS0 quiet", "-qmp", f"unix:{socket},server=on,wait=off",
         "-chardev", f"socket,id=console,path={work}/console,server=on,wait=off,logfile={work}/log",
         "-serial", "chardev:console", "-name", "example"])
    try:
        await control(client, machine, socket, work, began)
    finally:
        machine.kill()


async def control(client, machine, socket, work, began):
    """Waits for the guest, and gives it orders."""
    for _ in range(200):
        try:
            await client.connect(socket)
            break
        except Exception:
            await asyncio.sleep(0.05)
    for _ in range(1200):
        with open(f"{work}/log", "rb") as log:
            if b"tollgate-guest: ready" in log.read():
                break
        await asyncio.sleep(0.05)
    else:
        raise SystemExit("the guest did not boot")
    booted = time.monotonic() - began
    assert (await client.execute("query-status"))["running"]
    assert (await client.execute("query-name"))["name"] == "example"
    assert not (await client.execute("query-kvm"))["enabled"]
    assert len(await client.execute("query-cpus-fast")) == 1
    assert await client.execute("query-chardev")
    with client.listener(("STOP", "RESUME", "RESET", "POWERDOWN", "SHUTDOWN")) as events:
        await client.execute("stop")
        assert (await events.get())["event"] == "STOP"
        assert (await client.execute("query-status"))["status"] == "paused"
        await client.execute("cont")
        assert (await events.get())["event"] == "RESUME"
        await client.execute("system_powerdown")
        assert (await events.get())["event"] == "POWERDOWN"
        text = await client.execute("human-monitor-command", {"command-line": "info status"})
        assert text.startswith("VM status: running"), text
        try:
            await client.execute("no-such-command")
            raise SystemExit("an unknown command was accepted")
        except ExecuteError as error:
            assert error.error_class == "CommandNotFound"
        await client.execute("system_reset")
        assert (await events.get())["event"] == "RESET"
        await client.execute("quit")
        assert (await events.get())["event"] == "SHUTDOWN"
    await client.disconnect()
    assert machine.wait(30) == 0
    print(f"boot {booted:.2f} s, all {time.monotonic() - began:.2f} s")


asyncio.run(run(*sys.argv[1:]))
