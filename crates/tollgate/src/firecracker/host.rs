//! Carries out requests with a machine of Tollgate's.

use std::fs::File;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tollgate_exits::reading::Reading;
use tollgate_firecracker::{
    BalloonState, Drive, Logger, Machine, Metadata, Metrics, NetworkInterface, Resources,
    SnapshotCreate, SnapshotLoad, SnapshotType, VmState,
};
use tollgate_host_facts::file_words::reading;
use tollgate_machine::config::{Realtime, VmConfig};
use tollgate_machine::vm::{BuildError, Consoles, Vm};
use tollgate_machine::vm_handle::{
    AfterSnapshot, MediumChange, RemovableDrive, SnapshotOrder, State, VmHandle,
};

use super::arguments::FirecrackerArguments;
use super::boot_timer::BootTimer;
use super::log::{Level, Log, open};
use super::{configuration, metadata, metrics, saved};
use crate::cache::translations::Translations;
use crate::console::Console;
use crate::control::typing;
use crate::limits::{ControlGroup, HostLimits};
use crate::serial_target::SerialTarget;
use crate::snapshot;

/// How long the processor's thread may take for what it does within microseconds, unless it waits
/// for a reader of the guest's output.
const PATIENCE: Duration = Duration::from_secs(5);

/// A machine that is about to run.
pub struct Built {
    /// The machine, before its first instruction.
    pub vm: Vm,
    /// Where its serial port goes.
    pub serial: Console,
    /// Whether standard input is that port's input.
    pub reads_input: bool,
    /// Translated code that was kept next to the snapshot.
    pub translations: Option<Translations>,
}

/// What a machine may take of this host, and the control group that enforces it.
pub struct Limits {
    /// What the flag says.
    pub asked: HostLimits,
    /// The group, where there can be one.
    pub group: Option<ControlGroup>,
}

impl Limits {
    fn apply(&self, config: &mut VmConfig) -> Result<(), String> {
        let checked = self.asked.check(config.memory_bytes);
        checked.map_err(|why| format!("mem_size_mib: {why}"))?;
        self.asked.adapt(self.group.as_ref(), config);
        Ok(())
    }
}

/// What requests are carried out with.
pub struct Host {
    arguments: Arc<FirecrackerArguments>,
    handle: VmHandle,
    /// What the guest can read.
    metadata: Metadata,
    /// What the machine may take of this host.
    limits: Limits,
    /// Where messages go.
    pub log: Log,
    metrics: Option<Arc<File>>,
    /// Measures how long the guest takes to start, if it is asked for.
    pub boot_timer: Option<BootTimer>,
    /// The memory file of the last snapshot, on which the next difference is based.
    last_snapshot: Option<PathBuf>,
}

impl Host {
    /// Without a machine yet.
    pub fn new(
        arguments: Arc<FirecrackerArguments>,
        handle: VmHandle,
        metadata: Metadata,
        limits: Limits,
    ) -> Self {
        Self {
            log: Log::new(&arguments.id),
            arguments,
            handle,
            metadata,
            limits,
            metrics: None,
            boot_timer: None,
            last_snapshot: None,
        }
    }

    /// The file for measurements.
    pub fn metrics_file(&self) -> Option<Arc<File>> {
        self.metrics.clone()
    }

    /// Builds a machine; its serial port goes where the resources say.
    fn build(
        &self,
        resources: &Resources,
        translations: Option<Translations>,
        make: impl FnOnce(Consoles, &VmHandle) -> Result<Vm, BuildError>,
    ) -> Result<Built, String> {
        let path = resources.serial.as_ref();
        let path = path.and_then(|it| it.serial_out_path.clone());
        let reads_input = path.is_none();
        let target = path.map_or(SerialTarget::Stdio, SerialTarget::File);
        let serial = Console::open(&target, "serial_out_path").map_err(|it| it.message)?;
        let consoles = Consoles {
            serial: serial.writer().map_err(|error| error.to_string())?,
            debug: Box::new(std::io::sink()),
        };
        let mut vm = make(consoles, &self.handle).map_err(|error| error.to_string())?;
        if let Some(translations) = &translations {
            translations.lend(&mut vm);
        }
        Ok(Built {
            vm,
            serial,
            reads_input,
            translations,
        })
    }

    /// Asks the guest's driver for the statistics of its balloon.
    pub fn ask_for_statistics(&self) {
        if let Some(balloon) = self.handle.balloon() {
            balloon.ask_for_statistics();
        }
    }

    fn reading(&self) -> Option<Arc<Reading>> {
        match self.handle.status().state {
            State::Starting | State::Stopped => None,
            _ => self.handle.fresh_reading(PATIENCE),
        }
    }
}

impl Machine for Host {
    type Built = Built;

    fn check_network(&mut self, interface: &NetworkInterface) -> Result<Option<String>, String> {
        let chosen = configuration::network(interface)?;
        if let Some(why) = &chosen.instead {
            self.log.write(Level::Warning, why);
        }
        Ok(chosen.instead)
    }

    fn set_logger(&mut self, logger: &Logger) -> Result<(), String> {
        self.log.set(logger)
    }

    fn set_metrics(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.metrics = Some(Arc::new(open(&metrics.metrics_path, "metrics_path")?));
        Ok(())
    }

    fn flush_metrics(&mut self, requests: Map<String, Value>) -> Result<(), String> {
        let file = self.metrics.as_ref().ok_or("the metrics have no file")?;
        metrics::write(file, &metrics::line(requests, self.reading().as_deref()))
    }

    fn start(&mut self, resources: &Resources) -> Result<Built, String> {
        let mut config = configuration::of(resources, &self.arguments, &self.metadata)?;
        if self.arguments.boot_timer {
            let (timer, options) = BootTimer::start().map_err(|error| error.to_string())?;
            self.boot_timer = Some(timer);
            config.boot_timer = Some(options);
        }
        self.limits.apply(&mut config)?;
        check_readable(&config.kernel, "kernel_image_path")?;
        self.build(resources, None, |consoles, handle| {
            Vm::build(&config, consoles, handle)
        })
    }

    fn set_state(&mut self, state: VmState) -> Result<(), String> {
        let is_paused = match state {
            VmState::Paused => {
                self.handle.pause();
                true
            }
            VmState::Resumed => {
                self.handle.resume();
                false
            }
        };
        let reached = |state| match state {
            State::Stopped => true,
            State::Starting => false,
            state => (state == State::Paused) == is_paused,
        };
        let status = (self.handle).wait_for_status(PATIENCE, |status| reached(status.state));
        match status.state {
            State::Stopped => Err("the machine has ended".into()),
            state if reached(state) => Ok(()),
            _ => Err("the processor does not answer now; it will obey later".into()),
        }
    }

    fn create_snapshot(
        &mut self,
        order: &SnapshotCreate,
        resources: &Resources,
    ) -> Result<(), String> {
        let whole = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        let path = whole(&order.mem_file_path);
        let base = match order.snapshot_type {
            SnapshotType::Full => None,
            SnapshotType::Diff => self.last_snapshot.clone(),
        };
        if base.as_ref() == Some(&path) {
            let why = "the difference needs the last snapshot, which this would replace";
            return Err(format!("mem_file_path: {why}"));
        }
        let request = self.handle.request_snapshot(SnapshotOrder::Write {
            path: path.clone(),
            base,
            then: AfterSnapshot::Resume,
        });
        let result = self.handle.wait_for_snapshot(request);
        result.ok_or("the machine has ended")??;
        saved::write(&order.snapshot_path, &path, resources)?;
        self.last_snapshot = Some(path);
        Ok(())
    }

    fn load_snapshot(&mut self, order: &SnapshotLoad) -> Result<(Resources, Built), String> {
        let memory = order.memory();
        let saved = saved::read(&order.snapshot_path)?;
        saved.check_memory(memory)?;
        let mut resources = saved.configuration;
        let snapshot = snapshot::open(memory).map_err(|failure| failure.message)?;
        let mut config = snapshot.description().config.clone();
        lead_elsewhere(order, &mut resources, &mut config)?;
        configuration::keep_memory_secret(&self.arguments, &mut config);
        metadata::attach(&self.metadata, &resources, &mut config.networks);
        self.limits.apply(&mut config)?;
        let translations = Translations::next_to(memory, &config);
        let built = self.build(&resources, translations, |consoles, handle| {
            Vm::restored(snapshot, &config, consoles, handle)
        })?;
        if !order.resume_vm {
            // The processor's thread obeys before it runs guest code.
            self.handle.pause();
        }
        self.last_snapshot = absolute(memory).ok();
        Ok((resources, built))
    }

    fn change_drive(&mut self, index: usize, drive: &Drive) -> Result<(), String> {
        let request = self.handle.request_drives(MediumChange {
            drive: RemovableDrive::Virtio(index),
            image: Some(configuration::drive(drive)),
            force: false,
        });
        let changed = self.handle.wait_for_drives(request);
        changed
            .ok_or("the machine has ended")?
            .map_err(|why| format!("path_on_host: {why}"))
    }

    fn set_balloon(&mut self, pages: u32) -> Result<(), String> {
        let balloon = self.handle.balloon().ok_or("the machine has no balloon")?;
        balloon.set_target(pages);
        Ok(())
    }

    fn balloon(&mut self) -> Result<BalloonState, String> {
        let balloon = self.handle.balloon().ok_or("the machine has no balloon")?;
        let reading = balloon.reading();
        Ok(BalloonState {
            target_pages: reading.target_pages,
            actual_pages: reading.actual_pages,
            statistics: reading.statistics.into_iter().collect(),
        })
    }

    fn press_ctrl_alt_delete(&mut self) -> Result<(), String> {
        typing::type_keys("ctrl-alt-delete", &self.handle).map(|_| ())
    }
}

/// Gives a restored machine the networks, sockets and clocks that the order asks for.
fn lead_elsewhere(
    order: &SnapshotLoad,
    resources: &mut Resources,
    config: &mut VmConfig,
) -> Result<(), String> {
    for network in &order.network_overrides {
        let mut interfaces = resources.network_interfaces.iter_mut();
        let index = interfaces.position(|it| it.iface_id == network.iface_id);
        let index = index.ok_or("network_overrides.iface_id: there is no such interface")?;
        let interface = &mut resources.network_interfaces[index];
        interface.host_dev_name.clone_from(&network.host_dev_name);
        let place = config.networks.get_mut(index);
        let place = place.ok_or("network_overrides.iface_id: the snapshot lacks it")?;
        *place = configuration::network(interface)?.options;
    }
    if let Some(vsock) = &order.vsock_override {
        let lacks = "vsock_override: the machine has no vsock";
        config
            .vsock
            .as_mut()
            .ok_or(lacks)?
            .path
            .clone_from(&vsock.uds_path);
        if let Some(known) = &mut resources.vsock {
            known.uds_path.clone_from(&vsock.uds_path);
        }
    }
    config.realtime = match order.clock_realtime {
        true => Realtime::Step,
        false => Realtime::Keep,
    };
    Ok(())
}

/// Checks early that a file can be read.
fn check_readable(path: &Path, field: &str) -> Result<(), String> {
    File::open(path).map(|_| ()).map_err(|error| {
        let why = reading(&error);
        format!("{field}: cannot read '{}': {why}", path.display())
    })
}
