"""Puts the program tollgate into the wheel, and a kernel for its guests if scripts/get-guests has fetched one.

The program is TOLLGATE_BINARY, or one that was built in this repository (one that needs no library is
preferred), or is built now.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
KERNEL = "debian-amd64"


def program() -> Path:
    """The program's file, which is built if there is none."""
    named = os.environ.get("TOLLGATE_BINARY")
    if named:
        return Path(named)
    static = TARGET / "x86_64-unknown-linux-musl/release/tollgate"
    built = [path for path in (static, TARGET / "release/tollgate") if path.is_file()]
    if built:
        return built[0]
    command = ["cargo", "build", "--release", "--locked", "-p", "tollgate"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return TARGET / "release/tollgate"


class BuildWithProgram(build_py):
    """Copies the program and the kernel next to the package's modules."""

    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "tollgate"
        there = package / "bin/tollgate"
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program(), there)
        there.chmod(0o755)
        if shutil.which("strip"):
            subprocess.run(["strip", str(there)], check=False)
        guests = Path(os.environ.get("TOLLGATE_GUESTS") or TARGET / "guests")
        for name in (f"{KERNEL}/vmlinux", f"{KERNEL}/vmlinuz", f"{KERNEL}-modules"):
            source, copy = guests / name, package / "guests" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, dirs_exist_ok=True)
            elif source.is_file() and not (copy.parent / "vmlinux").exists():
                shutil.copyfile(source, copy)


class WheelForThisProcessor(bdist_wheel):
    """The wheel is for any Python on x86-64 Linux."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple:
        return ("py3", "none", "linux_x86_64")


setup(cmdclass={"build_py": BuildWithProgram, "bdist_wheel": WheelForThisProcessor})
