"""The protocol without a machine."""

import struct
from typing import Any, Dict, List

import pytest

from tollgate import TollgateError
from tollgate._machine import exec_flags
from tollgate._protocol import MOST, WINDOW, Exchange, frame, task


def test_a_task_is_records_in_pieces() -> None:
    assert task("true", cwd="/") == frame(b"k", b"argument sh\0argument -c\0argument true\0directory /\0") + frame(b"k")
    assert task(["x" * 20000]).count(b"k") == 3
    with pytest.raises(ValueError):
        task([])


def test_input_keeps_to_the_window() -> None:
    exchange = Exchange(b"", b"x" * (WINDOW + 5))
    total = bytearray()
    while data := exchange.to_send():
        total += data
        exchange.sent(len(data))
    assert total.count(b"x") == WINDOW
    exchange.receive(frame(b"g", struct.pack("<cI", b"0", 100)))
    assert exchange.to_send() == frame(b"0", b"xxxxx") + frame(b"0")


def test_what_is_received_may_be_cut_anywhere() -> None:
    exchange = Exchange(b"", b"")
    end = frame(b"e", struct.pack("<BQQIB", 7, 2, 1, 0, 2))
    result = None
    for byte in frame(b"r") + frame(b"1", b"ab") + frame(b"2", b"c") + end:
        assert result is None
        result = exchange.receive(bytes([byte]))
    assert result is not None
    assert (result.exit_code, result.stdout, result.stderr) == (7, "ab", "c")
    assert result.limits_reached == ("files",)


def test_an_end_without_a_result_is_an_error() -> None:
    with pytest.raises(TollgateError):
        Exchange(b"", b"").receive(b"")
    with pytest.raises(TollgateError):
        Exchange(b"", b"").receive(frame(b"?"))
    assert MOST < 16 << 10


def test_a_sandbox_is_flags() -> None:
    def words(**changed: Any) -> List[str]:
        arguments: Dict[str, Any] = dict.fromkeys(["memory", "root", "env", "user", "allow", "files", "processes"])
        arguments.update(network=False, shares=(), flags=(), sandbox=False)
        return exec_flags(**{**arguments, **changed})

    assert words() == []
    assert words(network=True) == ["--net=user"]
    assert words(sandbox=True, root="/r", files="9M", processes=8) == [
        "--sandbox",
        "--files=9M",
        "--processes=8",
        "--root=/r",
    ]
    assert words(allow=["a.org:443", "b"]) == ["--net=user,allow=a.org:443,allow=b"]
    assert words(allow=[], network=True) == ["--net=user,restrict=on"]
    assert words(allow=["b"], network="user,log=refused") == ["--net=user,log=refused,allow=b"]
    for wrong in ("a.org", ["a,b"]):
        with pytest.raises(ValueError):
            words(allow=wrong)
