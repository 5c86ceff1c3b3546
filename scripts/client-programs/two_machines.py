"""Boots two machines of scripts/get-client-guest with microheart, and lets one reach the other."""

import sys
from pathlib import Path

from microheart.vm import MicroVM

guest = Path(sys.argv[1])


class DebianVM(MicroVM):
    """Debian's kernel has its drivers in modules, so it needs an initial RAM disk."""

    def config(self, disk):
        config = super().config(disk)
        config["boot-source"]["initrd_path"] = str(guest / "initrd.img")
        return config


def machine(name):
    return DebianVM(name, rootfs=guest / "root.ext4", key=guest / "key")


with machine("one") as one, machine("two") as two:
    print("machine-config:", one.machine_config())
    for vm, other in ((one, two), (two, one)):
        answer = vm.run(["uname", "-sr"])
        assert answer.returncode == 0, answer.stderr
        print(f"{vm.name}:", answer.stdout.strip())
        answer = vm.run(["ping", "-c", "1", other.guest_ip])
        assert answer.returncode == 0, answer.stdout
        print(f"{vm.name}: reaches {other.guest_ip}")
for vm in (one, two):
    assert not vm.running() and vm.rec is None
