//! Makes the machine's configuration from what requests have configured.

use tollgate_firecracker::{Balloon, CacheType, Drive, Metadata, NetworkInterface, Resources};
use tollgate_machine::config::{
    BalloonOptions, Cache, DriveOptions, MIB, MemoryBackingChoice, NetworkKind, NetworkOptions,
    OptionalDevice, TripleFaultAction, UserCode, UserOptions, VmConfig, VsockOptions,
};
use tollgate_network::{Backend, MacAddress};

use super::arguments::FirecrackerArguments;
use crate::{flags, net};

/// The configuration of the machine.
///
/// # Errors
/// One line that names the field.
pub fn of(
    resources: &Resources,
    arguments: &FirecrackerArguments,
    metadata: &Metadata,
) -> Result<VmConfig, String> {
    let source = resources.boot_source.as_ref().ok_or("there is no kernel")?;
    let initrd = source.initrd_path.as_ref().map(|path| {
        let path = path.to_str().ok_or("initrd_path: the name is not UTF-8")?;
        // A comma would begin another module.
        Ok::<_, String>(path.replace(',', ",,"))
    });
    let mut devices = Vec::new();
    if resources.entropy.is_some() {
        devices.push(OptionalDevice::VirtioRng);
    }
    if arguments.balloon {
        devices.push(OptionalDevice::VirtioBalloon);
    }
    let interfaces = resources.network_interfaces.iter();
    let networks = interfaces.map(|interface| Ok(network(interface)?.options));
    let mut config = VmConfig {
        memory_bytes: resources.machine_config.mem_size_mib.saturating_mul(MIB),
        kernel: source.kernel_image_path.clone(),
        initrd: initrd.transpose()?,
        append: resources.command_line(arguments.enable_pci),
        cpu: arguments.cpu,
        pci: arguments.enable_pci,
        // Guests that restart themselves by a triple fault (reboot=t) end the process.
        triple_fault: TripleFaultAction::Reset,
        drives: resources.drives.iter().map(drive).collect(),
        networks: networks.collect::<Result<_, String>>()?,
        vsock: resources.vsock.as_ref().map(|vsock| VsockOptions {
            cid: vsock.guest_cid.into(),
            path: vsock.uds_path.clone(),
        }),
        devices,
        balloon: resources.balloon.as_ref().map(balloon),
        ..VmConfig::default()
    };
    super::metadata::attach(metadata, resources, &mut config.networks);
    keep_memory_secret(arguments, &mut config);
    flags::set_knobs(&mut config);
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

/// Makes guest memory secret if the command line says so.
pub fn keep_memory_secret(arguments: &FirecrackerArguments, config: &mut VmConfig) {
    if arguments.secret_memory {
        config.memory_backing = MemoryBackingChoice::Secret;
        config.user_code = UserCode::Translated;
    }
}

fn balloon(balloon: &Balloon) -> BalloonOptions {
    BalloonOptions {
        target_pages: balloon.pages(),
        deflate_on_oom: balloon.deflate_on_oom,
        statistics: balloon.stats_polling_interval_s != 0,
        page_reporting: balloon.free_page_reporting,
    }
}

/// The image of a drive.
pub fn drive(drive: &Drive) -> DriveOptions {
    DriveOptions {
        readonly: drive.is_read_only,
        cache: match drive.cache_type {
            CacheType::Unsafe => Cache::Unsafe,
            CacheType::Writeback => Cache::Writeback,
        },
        ..DriveOptions::new(drive.path_on_host.clone().unwrap_or_default())
    }
}

/// The network of an interface.
pub struct Chosen {
    /// How the network is opened.
    pub options: NetworkOptions,
    /// Why it is another one than the interface asks for.
    pub instead: Option<String>,
}

/// The network that an interface gets: the host's interface, user networking if that cannot be used,
/// or what the name says in the words of `tollgate run --net`.
///
/// # Errors
/// One line that names the field.
pub fn network(interface: &NetworkInterface) -> Result<Chosen, String> {
    let name = &interface.host_dev_name;
    let mac = interface.guest_mac.as_deref().map(str::parse::<MacAddress>);
    let mac = mac.transpose().map_err(|why| format!("guest_mac: {why}"))?;
    if net::is_network(name) {
        let parsed = net::parse(name).map_err(|why| format!("host_dev_name: {why}"))?;
        let options = parsed
            .0
            .ok_or("host_dev_name: an interface needs a network")?;
        let mac = mac.or(options.mac);
        return Ok(Chosen {
            options: NetworkOptions { mac, ..options },
            instead: None,
        });
    }
    let with_mac = |kind| NetworkOptions {
        mac,
        ..NetworkOptions::new(kind)
    };
    let tap = with_mac(NetworkKind::Tap(name.clone()));
    let address = mac.unwrap_or(MacAddress::of_adapter(0));
    match Backend::start(&tap, address, |_| {}) {
        Ok(_) => Ok(Chosen {
            options: tap,
            instead: None,
        }),
        Err(error) => Ok(Chosen {
            options: with_mac(NetworkKind::User(UserOptions::default())),
            instead: Some(format!(
                "{}: user networking instead of the host's interface '{name}': {error}",
                interface.iface_id
            )),
        }),
    }
}
