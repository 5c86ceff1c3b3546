//! Tests `tollgate-qemu` with what clouds and installers boot: a Debian image with cloud-init, by UEFI
//! and by a BIOS, and programs that firmware loads from the network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::qemu::qemu;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::session::Session;
use crate::support::system::{cloud_image, turn, uefi};

/// What the seed of `scripts/get-cloud-image` makes the guest print.
const SEEDED: &str = "seed: seeded: a file of the user data";

/// Boots the image with these words, which name the firmware and the seed, and reads what cloud-init
/// has made of the seed.
fn boot(image: &Path, words: &[String]) {
    let drive = format!("file={},format=raw,if=virtio,snapshot=on", image.display());
    let mut command = qemu(&[
        "-m", "1G", "-display", "none", "-serial", "stdio", "-drive", &drive,
    ]);
    // The image's kernel is made for clouds: it has no driver for the adapter of a PC.
    command.args(["-nic", "user,model=virtio"]);
    let mut guest = Session::over_pipes({
        command.args(words);
        command
    });
    for stage in [
        "Linux version",
        "Run /init as init process",
        "Welcome to ",
        "running 'init-local'",
        "running 'modules:final'",
        SEEDED,
        // Until then it writes to the console.
        " finished at ",
    ] {
        guest.wait_for(stage);
    }
    guest.type_bytes(b"\n");
    guest.wait_for("seeded login: ");
    guest.type_line("root");
    guest.wait_for("Password: ");
    guest.type_line("seed");
    guest.wait_for("root@seeded:~# ");
    guest.type_line(
        "exec env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin PS1='# ' sh",
    );
    // What follows is the shell's answer, and no longer the line as it was typed.
    guest.wait_for("PS1='# ' sh");
    guest.wait_for("# ");
    guest.type_line("stty -onlcr");
    guest.wait_for("stty -onlcr");
    guest.wait_for("# ");
    guest.shell("dmesg -n 1");
    assert_eq!(guest.shell("cloud-init status --wait"), "status: done");
    let failed = guest.shell("systemctl --failed --no-legend | wc -l");
    assert_eq!(failed, "0");
    guest.type_line("systemctl poweroff");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_cloud_image_takes_its_seed_by_uefi_from_a_disk_and_by_a_bios_from_a_disc() {
    let _turn = turn();
    let (Some(cloud), Some(firmware)) = (cloud_image(), uefi()) else {
        return;
    };
    let seed = cloud.join("seed.iso").display().to_string();
    let image = cloud.join("disk.img");
    let rom = firmware.join("OVMF.fd").display().to_string();
    let disk = format!("file={seed},format=raw,if=virtio,readonly=on");
    boot(&image, &["-bios".into(), rom, "-drive".into(), disk]);
    boot(&image, &["-cdrom".into(), seed]);
}

#[test]
fn firmware_loads_grub_and_linux_from_the_network() {
    let Some(files) = uefi() else { return };
    let folder = Folder::new();
    let served = folder.path("served");
    fs::create_dir(&served).unwrap();
    for (name, source) in [
        ("grub.efi", files.join("grubnetx64.efi")),
        ("vmlinuz", fetched("debian-amd64/vmlinuz")),
        ("initrd.img", fetched("initrd-amd64.img")),
    ] {
        fs::copy(source, served.join(name)).unwrap();
    }
    // A link out of the folder leads nowhere.
    folder.file("outside.cfg", b"echo outside\n");
    symlink("../outside.cfg", served.join("link.cfg")).unwrap();
    let configuration = "serial\nterminal_output serial\nset timeout=0\nsource /link.cfg\n\
         menuentry Debian {\n linux /vmlinuz console=ttyS0 loader=network\n initrd /initrd.img\n}\n";
    fs::create_dir(served.join("grub")).unwrap();
    fs::write(served.join("grub/grub.cfg"), configuration).unwrap();
    let network = format!(
        "user,id=n,restrict=on,tftp={},bootfile=grub.efi",
        served.display()
    );
    let mut command = qemu(&[
        "-m", "512", "-display", "none", "-serial", "stdio", "-netdev", &network,
    ]);
    command.args(["-device", "virtio-net-pci,netdev=n", "-bios"]);
    command.arg(files.join("OVMF.fd"));
    let mut guest = Session::over_pipes(command);
    guest.wait_for("NBP file downloaded successfully");
    guest.wait_for("tollgate-guest: ready");
    assert!(guest.shell("cat /proc/cmdline").contains("loader=network"));
    guest.type_line("exit");
    let end = guest.end();
    assert_eq!(end.code, Some(0));
    assert!(!end.output.contains("outside"));
}
