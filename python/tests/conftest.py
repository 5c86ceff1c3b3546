"""The tests run real machines, in a run-time folder of their own."""

import json
import os
import subprocess
from typing import Iterator

import pytest

from tollgate import Sandbox, TollgateError
from tollgate._machine import program


@pytest.fixture(scope="session", autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run-time")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    try:
        Sandbox().close()
    except TollgateError as error:
        if os.environ.get("TOLLGATE_SKIPS") == "fail":
            raise
        pytest.skip(f"no machine can be started here: {error}")
    yield str(folder)
    # This removes what machines have left that a test has killed.
    assert json.loads(subprocess.run([program(), "ps", "--json"], stdout=subprocess.PIPE).stdout) == []
    assert os.listdir(folder / "tollgate") == []


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox
