"""How machines are started and found."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import IO, List, Mapping, Optional, Sequence, Union

from ._errors import TollgateError

#: Where a command of the machine starts if nothing else is said.
HOME = "/"


def program() -> str:
    """The program tollgate: TOLLGATE_BINARY, the one in this package, or the one in PATH."""
    own = Path(__file__).parent / "bin/tollgate"
    found = os.environ.get("TOLLGATE_BINARY") or (str(own) if own.exists() else shutil.which("tollgate"))
    if found is None:
        raise TollgateError("no program 'tollgate': install this package with pip, or set TOLLGATE_BINARY")
    return found


def run_time_folder() -> Path:
    """The folder with the sockets of this user's machines."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    return Path(named) / "tollgate" if named else Path(f"/tmp/tollgate-{os.geteuid()}")


def socket_of(pid: int) -> str:
    """The control socket of the machine of a process."""
    return str(run_time_folder() / f"{pid}.sock")


def exec_flags(
    *,
    memory: Optional[str],
    network: Union[bool, str],
    root: Optional[str],
    shares: Sequence[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    flags: Sequence[str],
    sandbox: bool,
    allow: Optional[Sequence[str]],
    files: Optional[str],
    processes: Optional[int],
) -> List[str]:
    """Flags of `tollgate exec` for a machine."""
    words: List[str] = []
    if sandbox:
        words.append("--sandbox")
    if memory is not None:
        words.append(f"--memory={memory}")
    if files is not None:
        words.append(f"--files={files}")
    if processes is not None:
        words.append(f"--processes={processes}")
    if network or allow is not None:
        words.append("--net=" + _network(network, allow))
    if root is not None:
        words.append(f"--root={root}")
    words += [f"--share={share}" for share in shares]
    words += [f"--env={name}={value}" for name, value in (env or {}).items()]
    if user is not None:
        words.append(f"--user={user}")
    return [*words, *flags]


def _network(network: Union[bool, str], allow: Optional[Sequence[str]]) -> str:
    """The value of `--net`."""
    value = network if isinstance(network, str) else "user"
    if allow is None:
        return value
    if isinstance(allow, str) or any("," in rule for rule in allow):
        raise ValueError("allow is a list, with one destination in each string")
    # An empty list allows nothing.
    return value + ("".join(f",allow={rule}" for rule in allow) or ",restrict=on")


def keep_command(flags: Sequence[str], name: Optional[str], snapshot: Optional[str]) -> List[str]:
    """The command that starts a machine, which ends with its standard input."""
    more = [f"--name={name}"] if name is not None else []
    if snapshot is not None:
        more.append(f"--restore={os.path.abspath(snapshot)}")
    return [program(), "exec", "--keep", "--end-with-input", *more, *flags]


def snapshot_request(path: str) -> bytes:
    """The request that writes a snapshot."""
    request = {"command": "snapshot", "file": os.path.abspath(path)}
    return json.dumps(request).encode() + b"\n"


def why_not_started(errors: IO[bytes], code: Optional[int]) -> TollgateError:
    """What a machine that has not started has said."""
    errors.seek(0)
    text = errors.read().decode(errors="replace").strip()
    lines = [line[len("tollgate: ") :] if line.startswith("tollgate: ") else line for line in text.splitlines()]
    return TollgateError("; ".join(lines) or f"tollgate ended with code {code}")


def accepted(line: bytes) -> "dict[str, object]":
    """The answer to a request, which must have been accepted."""
    try:
        answer = json.loads(line)
    except ValueError:
        raise TollgateError("the machine does not answer") from None
    if not answer.get("ok"):
        raise TollgateError(str(answer.get("error", "the machine refused")))
    return dict(answer)


def socket_of_pool(name: str) -> str:
    """The socket of the pool with a name."""
    try:
        facts = json.loads((run_time_folder() / f"{name}.machine").read_text())
        return str(facts["socket"])
    except (OSError, ValueError, KeyError):
        raise TollgateError(f"no pool with the name '{name}' is running") from None
