//! Tests that the command lines of programs that drive QEMU are taken, as these programs write them.

use crate::{Configuration, Files, Interface, Request, request};

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _path: &str) -> Result<String, String> {
        Err("no such file".into())
    }
}

/// The configuration of a line whose words have no spaces.
fn configuration(line: &str) -> Configuration {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match request("qemu", &words, &NoFiles) {
        Ok(Request::Run(configuration)) => *configuration,
        Ok(Request::Answer(text)) => panic!("{text}"),
        Err(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn vmtest_with_a_kernel_and_with_an_image() {
    let agent = "-nodefaults -display none -serial stdio -cpu qemu64 -qmp unix:/t/qmp,server=on,wait=off \
         -chardev socket,path=/t/qga,server=on,wait=off,id=qga0 -device virtio-serial \
         -device virtserialport,chardev=qga0,name=org.qemu.guest_agent.0 \
         --device virtio-serial -chardev socket,path=/t/out,server=on,wait=off,id=cmdout \
         --device virtserialport,chardev=cmdout,name=org.qemu.virtio_serial.0 \
         -virtfs local,id=shared,path=/s,mount_tag=vmtest-shared,security_model=none,multidevs=remap \
         -smp 2 -m 4G";
    let kernel = configuration(&format!(
        "{agent} -kernel bzImage -no-reboot -append rootfstype=9p \
         -virtfs local,id=root,path=/,mount_tag=/dev/root,security_model=none,multidevs=remap"
    ));
    assert_eq!((kernel.ports.len(), kernel.shares.len()), (2, 2));
    assert!(kernel.networks.is_empty());
    let image = configuration(&format!(
        "{agent} -drive file=a.img,index=0,media=disk,if=none,id=disk1 \
         -device virtio-blk-pci,drive=disk1,bootindex=0"
    ));
    assert_eq!(image.drives[0].boot_index, Some(0));
}

#[test]
fn little_vm_helper_with_a_log_and_a_terminal() {
    let config = configuration(
        "-nodefaults -display none -no-reboot -smp 2 -m 4G -serial file:console.log -hda vm.qcow2 \
         -kernel vmlinuz -append root=/dev/sda -netdev user,id=user.0,hostfwd=tcp::2222-:22 \
         -device virtio-net-pci,netdev=user.0 -serial mon:stdio -device virtio-serial-pci \
         -monitor tcp:localhost:4444,server,nowait \
         -fsdev local,id=host_id,path=/h,security_model=none \
         -device virtio-9p-pci,fsdev=host_id,mount_tag=host_mount",
    );
    assert_eq!(config.drives[0].interface, Interface::IdeDisk);
    assert_eq!(config.serial.iter().flatten().count(), 2);
    assert_eq!(config.monitors.len(), 2);
}

#[test]
fn debos_and_its_machine() {
    let config = configuration(
        "-cpu max -smp 2 -m 2048 -kernel vmlinuz -initrd initrd -display none -no-reboot \
         -device virtio-serial -device virtconsole,chardev=for-ttyS0 -chardev stdio,id=for-ttyS0,signal=off \
         -append console=ttyS0 \
         -virtfs local,mount_tag=usr,path=/usr,security_model=none \
         -drive file=a.img,if=none,format=raw,cache=unsafe,id=drive-virtio-disk0 \
         -device virtio-blk-pci,drive=drive-virtio-disk0,id=virtio-disk0,serial=fakedisk-0",
    );
    // It relies on the network that QEMU has without an option.
    assert_eq!(config.networks.len(), 1);
    assert_eq!(config.drives[0].serial, "fakedisk-0");
}

#[test]
fn bootimage_and_its_tests() {
    let config = configuration(
        "-drive format=raw,file=bootimage.bin -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=0x04 \
         -serial stdio -display none",
    );
    let port = config.exit_port.unwrap();
    assert_eq!((port.port, port.count), (0xf4, 4));
}

#[test]
fn libguestfs_and_its_appliance() {
    let config = configuration(
        "-global virtio-blk-pci.scsi=off -no-user-config -nodefaults -display none -machine accel=kvm:tcg \
         -cpu max -m 1280 -no-reboot -rtc driftfix=slew -no-hpet -global kvm-pit.lost_tick_policy=discard \
         -kernel kernel -initrd initrd -object rng-random,filename=/dev/urandom,id=rng0 \
         -device virtio-rng-pci,rng=rng0 -device virtio-scsi-pci,id=scsi \
         -drive file=/t/scratch.1,cache=unsafe,format=raw,id=hd0,if=none -device scsi-hd,drive=hd0 \
         -drive file=/t/root,snapshot=on,id=appliance,cache=unsafe,if=none,format=raw \
         -device scsi-hd,drive=appliance -device virtio-serial-pci -serial stdio \
         -chardev socket,path=/t/sock,id=channel0 \
         -device virtserialport,chardev=channel0,name=org.libguestfs.channel.0 -append panic=1",
    );
    let is_scsi = |drive: &crate::Drive| drive.interface == Interface::ScsiDisk;
    assert!(config.drives.iter().all(is_scsi) && config.drives.len() == 2);
}
