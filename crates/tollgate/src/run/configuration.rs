//! Makes the machine's configuration from the flags of `tollgate run`.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tollgate_host_facts::file_words::reading;
use tollgate_machine::boot::firmware;
use tollgate_machine::boot::guest_hooks::GuestHooks;
use tollgate_machine::config::{BootDevice, ConfigError, MemoryBackingChoice, VmConfig};
use tollgate_machine::devices::fw_cfg::FwCfgFile;

use super::RunArguments;
use crate::failure::Failure;
use crate::flags::{BootArguments, GuestHooksFor};
use crate::fw_cfg;
use crate::snapshot::separate::separate;

/// The configuration that the command line describes, checked as far as possible.
///
/// # Errors
/// One line that says which flag is wrong, and why.
pub fn configuration(arguments: &RunArguments) -> Result<VmConfig, Failure> {
    let usage = |error: ConfigError| Failure::usage(error.to_string());
    let boot = &arguments.boot;
    let mut config = VmConfig {
        kernel: boot.kernel.clone().unwrap_or_default(),
        firmware: firmware(boot)?,
        flash: arguments.disks.flash(&boot.pflash),
        initrd: match boot.initrd.as_slice() {
            [] => None,
            modules => Some(modules.join(",")),
        },
        append: boot.append.clone(),
        boot_order: (boot.boot.clone()).map_or_else(|| BootDevice::ALL.to_vec(), |boot| boot.0),
        fw_cfg_files: fw_cfg::read(&boot.fw_cfg)?,
        ports: arguments.consoles.ports()?,
        networks: arguments.network.networks(),
        vsock: arguments.network.vsock.clone(),
        count_instructions: arguments.statistics.count_instructions,
        ..VmConfig::default()
    };
    if config.firmware.is_some() {
        let is_named = |file: &FwCfgFile| config.fw_cfg_files.iter().any(|f| f.name == file.name);
        let video = firmware::find_video().filter(|file| !is_named(file));
        config.fw_cfg_files.extend(video);
    }
    if let Some(GuestHooksFor::Dos) = boot.guest_hooks {
        config.fw_cfg_files.push(GuestHooks::Dos.file());
    }
    arguments.machine.apply(&mut config);
    arguments.disks.apply(&mut config).map_err(usage)?;
    arguments.devices.apply(&mut config);
    arguments.events.apply(&mut config);
    arguments.developer.apply(&mut config)?;
    if let Some(path) = &boot.bios {
        check_readable(path, "--bios")?;
    }
    match boot.kernel {
        Some(_) => check_readable(&config.kernel, "--kernel")?,
        None if !boot.append.is_empty() || !boot.initrd.is_empty() => {
            let why = "--initrd and --append belong to --kernel";
            return Err(Failure::usage(why));
        }
        None => {}
    }
    config.validate().map_err(usage)?;
    Ok(config)
}

/// The configuration of a machine that is restored: its own, in which the command line says what
/// lies outside the guest.
///
/// # Errors
/// One line that says which flag is wrong, and why.
pub fn restored(arguments: &RunArguments, saved: &VmConfig) -> Result<VmConfig, Failure> {
    let mut config = VmConfig {
        count_instructions: arguments.statistics.count_instructions,
        ..saved.clone()
    };
    if arguments.machine.secret_memory {
        config.memory_backing = MemoryBackingChoice::Secret;
    }
    arguments.events.apply(&mut config);
    arguments.developer.apply(&mut config)?;
    if let Some(prefix) = &arguments.boot.separate {
        separate(&mut config, prefix)?;
    }
    Ok(config)
}

/// The firmware that the machine starts from: the named file, or without a kernel the host's.
fn firmware(boot: &BootArguments) -> Result<Option<PathBuf>, Failure> {
    let first = boot.pflash.first().map(|chip| &chip.path);
    match (&boot.kernel, boot.bios.as_ref().or(first)) {
        (_, Some(path)) => Ok(Some(path.clone())),
        (None, None) => firmware::find().map(Some).map_err(Failure::usage),
        (Some(_), None) => Ok(None),
    }
}

/// Checks early that a file can be read, and says why if it cannot. The function reads nothing,
/// because the file may be a pipe, as a shell's `<(zcat kernel.gz)` is.
fn check_readable(path: &Path, flag: &str) -> Result<(), Failure> {
    let result = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(ErrorKind::IsADirectory.into()),
        false => Ok(()),
    });
    let Err(error) = result else {
        return Ok(());
    };
    let why = reading(&error);
    Err(Failure::usage(format!(
        "{flag}: cannot read '{}': {why}",
        path.display()
    )))
}
