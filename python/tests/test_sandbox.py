"""What a sandbox does for ordinary programs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

import pytest

from tollgate import CommandFailed, Pool, Sandbox, TollgateError


def test_a_command_has_streams_and_a_code(box: Sandbox) -> None:
    result = box.run("cat; echo error >&2; exit 3", stdin="input\n")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "input\n", "error\n")
    assert not result.timed_out
    with pytest.raises(CommandFailed, match="code 3: error"):
        result.check()


def test_python_runs(box: Sandbox) -> None:
    if box.run("command -v python3").exit_code != 0:
        pytest.skip("this host has no python3 in its PATH")
    assert box.run("python3 -c 'print(1)'").stdout == "1\n"


def test_words_pass_as_they_are(box: Sandbox) -> None:
    assert box.run(["printf", "%s|", "a b", "", "ä\n"]).stdout == "a b||ä\n|"
    with pytest.raises(ValueError):
        box.run(["a\0b"])
    assert box.run(["/nowhere/at/all"]).exit_code == 127


def test_environment_directory_and_user(box: Sandbox) -> None:
    result = box.run("echo $A $PWD; id -u", env={"A": "b c"}, cwd="/usr", user="65534")
    assert result.stdout == "b c /usr\n65534\n"


def test_commands_share_the_machine(box: Sandbox) -> None:
    box.run("echo kept > /tmp/kept", check=True)
    assert box.run("cat /tmp/kept").stdout == "kept\n"
    assert not Path("/tmp/kept").exists()


def test_files_go_in_and_out(box: Sandbox) -> None:
    data = os.urandom(3_000_000)
    box.write_file("/tmp/new/folder/data", data, mode=0o600)
    assert box.read_file("/tmp/new/folder/data") == data
    assert box.run("stat -c %a /tmp/new/folder/data").stdout == "600\n"
    with pytest.raises(TollgateError, match="No such file"):
        box.read_file("/tmp/nothing")


def test_much_passes_in_both_directions(box: Sandbox) -> None:
    data = b"0123456789abcdef" * 200_000
    assert box.run(["cat"], stdin=data).stdout_bytes == data
    # Input that nobody reads holds up nothing.
    assert box.run(["true"], stdin=data).exit_code == 0


def test_output_comes_as_it_is_written(box: Sandbox) -> None:
    pieces: List[bytes] = []
    result = box.run("echo a; sleep 0.5; echo b", on_stdout=pieces.append)
    assert pieces == [b"a\n", b"b\n"]
    assert result.stdout == ""


def test_time_ends(box: Sandbox) -> None:
    result = box.run("sleep 1000", timeout=0.5, stdin=b"x" * 2_000_000)
    assert (result.exit_code, result.timed_out) == (124, True)
    result = box.run("trap '' TERM; echo began; while :; do sleep 0.1; done", timeout=0.5)
    assert (result.exit_code, result.stdout) == (124, "began\n")
    assert "trap" not in box.run("ps ax || true").stdout


def test_commands_run_at_the_same_time(box: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        begin = time.monotonic()
        results = list(threads.map(lambda n: box.run(f"sleep 2; echo {n}").stdout, range(8)))
    assert results == [f"{n}\n" for n in range(8)]
    assert time.monotonic() - begin < 16


def test_twenty_sandboxes_at_once() -> None:
    def work(number: int) -> str:
        with Sandbox(memory="256M") as sandbox:
            return sandbox.run(f"echo {number}").stdout

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(work, range(20))) == [f"{n}\n" for n in range(20)]


def test_a_machine_that_cannot_start_says_why() -> None:
    with pytest.raises(TollgateError, match="cannot read '/nowhere'"):
        Sandbox(flags=["--kernel=/nowhere"])
    sandbox = Sandbox()
    sandbox.close()
    sandbox.close()
    with pytest.raises(TollgateError, match="closed"):
        sandbox.run("true")


def test_a_machine_that_ends_is_noticed() -> None:
    with Sandbox() as sandbox:
        os.kill(sandbox.pid, signal.SIGKILL)
        with pytest.raises(TollgateError):
            sandbox.run("true")


def test_nothing_outlives_a_killed_program() -> None:
    code = "from tollgate import Sandbox; print(Sandbox().pid, flush=True); import time; time.sleep(1000)"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    program.kill()
    program.wait()
    program.stdout.close()
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the machine is still there")


def test_forks_continue_from_where_a_machine_is(tmp_path: Path) -> None:
    with Sandbox(memory="256M") as sandbox:
        sandbox.run("echo 1 > /tmp/a; cat /etc/passwd > /dev/null; (sleep 1000; true) > /dev/null 2>&1 &", check=True)
        with sandbox.fork() as fork:
            assert fork.name != sandbox.name
            assert fork.run("cat /tmp/a; echo 2 > /tmp/a").stdout == "1\n"
            assert fork.run("cat /etc/passwd").stdout == Path("/etc/passwd").read_text()
            assert "sleep" in fork.run("cat /proc/[0-9]*/comm").stdout
            random = "head -c 16 /dev/urandom | od -An -tx1"
            assert fork.run(random).stdout != sandbox.run(random).stdout
            with fork.fork() as second:
                assert second.run("cat /tmp/a").stdout == "2\n"
        assert sandbox.run("cat /tmp/a").stdout == "1\n"
        file = str(tmp_path / "snapshot")
        sandbox.snapshot(file)
    for _ in range(2):
        with Sandbox(memory="256M", snapshot=file) as later:
            assert later.run("cat /tmp/a").stdout == "1\n"
            assert abs(float(later.run("date +%s").stdout) - time.time()) < 60
    with pytest.raises(TollgateError, match="other flags"):
        Sandbox(memory="512M", snapshot=file)


@pytest.fixture
def other_system(tmp_path: Path) -> str:
    """A root with a shell, and the programs that the tests use."""
    busybox = shutil.which("busybox") or os.path.join(os.environ.get("TOLLGATE_GUESTS", ""), "busybox-amd64/busybox")
    if not os.path.exists(busybox):
        pytest.skip("no busybox, which is a system in one file")
    (tmp_path / "bin").mkdir()
    shutil.copy(busybox, tmp_path / "bin/busybox")
    for name in ("sh", "cat", "env", "head", "ls", "nc", "sleep"):
        (tmp_path / "bin" / name).symlink_to("busybox")
    return str(tmp_path)


def test_a_sandbox_sees_nothing_of_this_host(other_system: str) -> None:
    with Sandbox(sandbox=True, root=other_system, memory="256M", files="16M", processes=16) as sandbox:
        assert sandbox.run("ls /").stdout.split() == ["bin", "dev", "proc", "run", "sys", "tmp"]
        assert "XDG_RUNTIME_DIR" not in sandbox.run("env").stdout
        assert sandbox.run("ls /sys/class/net").stdout == "lo\n"
        result = sandbox.run("head -c 20000000 /dev/zero > /tmp/hog")
        assert (result.exit_code, result.limits_reached) == (1, ("files",))
        result = sandbox.run("while true; do sleep 1000 & done", timeout=60)
        assert "processes" in result.limits_reached
    with pytest.raises(TollgateError, match="--root DIR"):
        Sandbox(sandbox=True)
    with pytest.raises(TollgateError, match="say what the command reaches"):
        Sandbox(sandbox=True, root=other_system, network=True)


def test_a_sandbox_reaches_what_is_allowed(other_system: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = (it.getsockname()[1] for it in (server, other))

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(b"allowed\n")
            connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with Sandbox(sandbox=True, root=other_system, memory="256M", allow=[f"host:{port}"]) as sandbox:
            assert sandbox.run(f"nc 10.0.2.2 {port} < /dev/null").stdout == "allowed\n"
            assert sandbox.run(f"nc 10.0.2.2 {closed} < /dev/null").exit_code != 0
        thread.join()


def test_a_pool_hands_out_machines() -> None:
    with Pool(size=2, memory="256M") as pool:
        names = set()
        for number in range(4):
            with pool.take(cwd="/tmp") as sandbox:
                assert sandbox.run(f"pwd; echo {number} > /tmp/a; ls /tmp/a").stdout == "/tmp\n/tmp/a\n"
                names.add(sandbox.name)
        assert len(names) == 4


def test_machines_of_a_pool_have_run_its_warm_command() -> None:
    with Pool(size=1, memory="256M", warm="echo was here > /tmp/warm; echo never seen") as pool:
        with pool.take() as sandbox:
            assert sandbox.run("cat /tmp/warm").stdout == "was here\n"
    with pytest.raises(TollgateError, match="--warm: exit status: 3: why not"):
        Pool(size=1, memory="256M", warm="echo why not >&2; exit 3")
