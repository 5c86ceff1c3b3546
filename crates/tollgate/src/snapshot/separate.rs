//! What a machine that runs next to others of the same snapshot must not share with them: disks
//! that its guest writes, and files, sockets and ports of the host.

use std::path::{Path, PathBuf};

use tollgate_machine::config::{NetworkKind, PortOptions, PortTarget, VmConfig};

use crate::failure::Failure;

/// Gives a machine places of its own on the host, whose names begin with `prefix`. Disks that its
/// guest may write get overlays that are discarded at the end, and no ports of the host are
/// forwarded to it.
///
/// # Errors
/// One line names something that only one machine can have.
pub fn separate(config: &mut VmConfig, prefix: &Path) -> Result<(), Failure> {
    for image in config.written_images_mut() {
        image.snapshot = true;
    }
    for port in &mut config.ports {
        port.target = target(port, prefix)?;
    }
    for network in &mut config.networks {
        match &mut network.kind {
            NetworkKind::User(options) => options.forwards.clear(),
            NetworkKind::Passt => {}
            NetworkKind::Socket(path) => {
                return Err(single(&format!(
                    "the network's socket '{}'",
                    path.display()
                )));
            }
            NetworkKind::Tap(name) => {
                return Err(single(&format!("the network's interface '{name}'")));
            }
            NetworkKind::Descriptor(number) => {
                return Err(single(&format!("the network's descriptor {number}")));
            }
        }
    }
    if let Some(vsock) = &mut config.vsock {
        vsock.path = with_suffix(prefix, ".vsock");
    }
    Ok(())
}

/// The number of ports of the host that are forwarded to a machine.
pub fn forwarded_ports(config: &VmConfig) -> usize {
    let forwards = config.networks.iter().map(|network| match &network.kind {
        NetworkKind::User(options) => options.forwards.len(),
        _ => 0,
    });
    forwards.sum()
}

/// A path with something added to its last name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The host's end of a port, for this machine alone.
fn target(port: &PortOptions, prefix: &Path) -> Result<PortTarget, Failure> {
    let name = &port.name;
    match port.target {
        PortTarget::Socket(_) => Ok(PortTarget::Socket(with_suffix(
            prefix,
            &format!(".port-{name}.sock"),
        ))),
        PortTarget::Descriptor(number) => {
            Err(single(&format!("the port '{name}' (descriptor {number})")))
        }
        PortTarget::File(_)
        | PortTarget::Stdio
        | PortTarget::Stdin
        | PortTarget::Stdout
        | PortTarget::Stderr => Ok(PortTarget::File(with_suffix(
            prefix,
            &format!(".port-{name}"),
        ))),
    }
}

fn single(what: &str) -> Failure {
    Failure::usage(format!(
        "{what} belongs to one machine alone, so there can be no other of this snapshot next to it"
    ))
}

#[cfg(test)]
mod tests {
    use tollgate_machine::config::{
        DriveOptions, HostForward, NetworkOptions, OnLoss, Transport, UserOptions, VsockOptions,
    };

    use super::*;

    fn port(name: &str, target: PortTarget) -> PortOptions {
        PortOptions {
            name: name.into(),
            target,
            is_console: false,
            on_loss: OnLoss::default(),
        }
    }

    #[test]
    fn everything_that_two_machines_cannot_have_is_the_machines_own() {
        let forward = HostForward {
            transport: Transport::default(),
            host: ([127, 0, 0, 1], 2222).into(),
            guest_address: None,
            guest_port: 22,
        };
        let user = UserOptions {
            forwards: vec![forward],
            ..UserOptions::default()
        };
        let mut read = DriveOptions::new("read.img");
        read.readonly = true;
        let mut config = VmConfig {
            drives: vec![DriveOptions::new("written.img"), read],
            floppies: vec![None, Some(DriveOptions::new("floppy.img"))],
            networks: vec![NetworkOptions::new(NetworkKind::User(user))],
            vsock: Some(VsockOptions {
                cid: 3,
                path: "v.sock".into(),
            }),
            ports: vec![
                port("log", PortTarget::File("out".into())),
                port("agent", PortTarget::Socket("agent.sock".into())),
                port("hvc0", PortTarget::Stdio),
            ],
            ..VmConfig::default()
        };
        assert_eq!(forwarded_ports(&config), 1);
        separate(&mut config, Path::new("/tmp/vm-2")).unwrap();
        assert_eq!(forwarded_ports(&config), 0);
        let temporary: Vec<bool> = config.images().map(|image| image.snapshot).collect();
        assert_eq!(temporary, [true, false, true]);
        assert_eq!(config.vsock.unwrap().path, Path::new("/tmp/vm-2.vsock"));
        let targets: Vec<PortTarget> = config.ports.into_iter().map(|port| port.target).collect();
        assert_eq!(
            targets,
            [
                PortTarget::File("/tmp/vm-2.port-log".into()),
                PortTarget::Socket("/tmp/vm-2.port-agent.sock".into()),
                PortTarget::File("/tmp/vm-2.port-hvc0".into()),
            ]
        );
    }

    #[test]
    fn what_one_machine_alone_can_have_is_named() {
        let networks = [
            (NetworkKind::Tap("tap7".into()), "tap7"),
            (NetworkKind::Socket("net.sock".into()), "net.sock"),
            (NetworkKind::Descriptor(9), "descriptor 9"),
        ];
        for (kind, name) in networks {
            let mut config = VmConfig {
                networks: vec![NetworkOptions::new(kind)],
                ..VmConfig::default()
            };
            let error = separate(&mut config, Path::new("vm")).unwrap_err().message;
            assert!(error.contains(name), "{error}");
        }
        let mut config = VmConfig {
            ports: vec![port("control", PortTarget::Descriptor(4))],
            ..VmConfig::default()
        };
        let error = separate(&mut config, Path::new("vm")).unwrap_err().message;
        assert!(error.contains("'control' (descriptor 4)"), "{error}");
    }
}
