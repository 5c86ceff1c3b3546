//! What was configured, in which state the machine is, and what is possible there.

use serde_json::{Value, json};

use crate::VERSION;
use crate::bodies::{
    Action, BalloonState, Drive, DriveUpdate, Logger, Metrics, NetworkInterface, SnapshotCreate,
    SnapshotLoad, VmState,
};
use crate::config_file::ConfigFile;
use crate::counts::RequestCounts;
use crate::fault::Fault;
use crate::http::{HttpRequest, Response, Status};
use crate::metadata::Metadata;
use crate::resources::Resources;
use crate::route::{Request, route};

/// The states of a machine that clients see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstanceState {
    /// It is being configured.
    NotStarted,
    /// The processor executes guest code.
    Running,
    /// It stands still.
    Paused,
}

impl InstanceState {
    /// The state's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "Not started",
            Self::Running => "Running",
            Self::Paused => "Paused",
        }
    }
}

/// What requests are carried out with. An error is one line.
pub trait Machine {
    /// A machine that is about to run, for the owner.
    type Built;

    /// Checks that an interface's network can be used. Returns a remark if it is another network
    /// than the interface asks for.
    ///
    /// # Errors
    /// One line that names the field.
    fn check_network(&mut self, interface: &NetworkInterface) -> Result<Option<String>, String>;

    /// Writes messages where this says from now on.
    ///
    /// # Errors
    /// One line.
    fn set_logger(&mut self, logger: &Logger) -> Result<(), String>;

    /// Writes measurements where this says from now on.
    ///
    /// # Errors
    /// One line.
    fn set_metrics(&mut self, metrics: &Metrics) -> Result<(), String>;

    /// Writes measurements now; `requests` are those of the interface.
    ///
    /// # Errors
    /// One line.
    fn flush_metrics(&mut self, requests: serde_json::Map<String, Value>) -> Result<(), String>;

    /// Builds the machine.
    ///
    /// # Errors
    /// One line.
    fn start(&mut self, resources: &Resources) -> Result<Self::Built, String>;

    /// Stops the machine between two instructions, or lets it continue, and waits until it has.
    ///
    /// # Errors
    /// One line.
    fn set_state(&mut self, state: VmState) -> Result<(), String>;

    /// Writes a snapshot of the machine, which stands still, with what was configured.
    ///
    /// # Errors
    /// One line.
    fn create_snapshot(
        &mut self,
        order: &SnapshotCreate,
        resources: &Resources,
    ) -> Result<(), String>;

    /// Builds a machine from a snapshot, and returns what was configured. It is paused unless the order
    /// says that it runs.
    ///
    /// # Errors
    /// One line.
    fn load_snapshot(&mut self, order: &SnapshotLoad) -> Result<(Resources, Self::Built), String>;

    /// Opens the image of a drive, whose number is `index`, in place of the one that the machine has.
    ///
    /// # Errors
    /// One line that names the field.
    fn change_drive(&mut self, index: usize, drive: &Drive) -> Result<(), String>;

    /// Asks the guest to give this number of pages.
    ///
    /// # Errors
    /// One line that says why the machine cannot do this.
    fn set_balloon(&mut self, pages: u32) -> Result<(), String>;

    /// What is known of the balloon.
    ///
    /// # Errors
    /// One line that says why the machine cannot do this.
    fn balloon(&mut self) -> Result<BalloonState, String>;

    /// Presses Ctrl-Alt-Delete.
    ///
    /// # Errors
    /// One line.
    fn press_ctrl_alt_delete(&mut self) -> Result<(), String>;
}

/// A request that was carried out or refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served<B> {
    /// What the client gets back.
    pub response: Response,
    /// The refusal's line, if it is one.
    pub refusal: Option<String>,
    /// The machine, if the request has started it.
    pub built: Option<B>,
}

/// The interface of one machine.
#[derive(Debug)]
pub struct Api {
    id: String,
    resources: Resources,
    state: InstanceState,
    counts: RequestCounts,
    metadata: Metadata,
}

const TOO_LATE: &str = "The requested operation is not supported after starting the microVM.";
const TOO_EARLY: &str = "The requested operation is not supported before starting the microVM.";

impl Api {
    /// The interface of a machine with this name, which is not configured yet, and the metadata that
    /// its guest can read.
    pub fn new(id: &str, metadata: Metadata) -> Self {
        Self {
            id: id.to_owned(),
            resources: Resources::default(),
            state: InstanceState::NotStarted,
            counts: RequestCounts::default(),
            metadata,
        }
    }

    /// The state of the machine.
    pub fn state(&self) -> InstanceState {
        self.state
    }

    /// What was configured.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Answers a request.
    pub fn serve<M: Machine>(&mut self, http: &HttpRequest, machine: &mut M) -> Served<M::Built> {
        let mut built = None;
        let result = route(http).and_then(|request| self.obey(request, machine, &mut built));
        if let Some(method) = http.method {
            self.counts.add(method, &http.path, result.is_ok());
        }
        let (response, refusal) = match result {
            Ok(response) => (response, None),
            Err(fault) => (fault.response(), Some(fault.message)),
        };
        Served {
            response,
            refusal,
            built,
        }
    }

    /// Configures the machine as a file says, and starts it.
    ///
    /// # Errors
    /// One line names what is wrong.
    pub fn start_from<M: Machine>(
        &mut self,
        file: ConfigFile,
        machine: &mut M,
    ) -> Result<M::Built, Fault> {
        for request in file.requests()? {
            self.obey(request, machine, &mut None)?;
        }
        self.start(machine)
    }

    /// The number of requests, as part of the metrics.
    pub fn counts(&self) -> serde_json::Map<String, Value> {
        self.counts.shown()
    }

    fn obey<M: Machine>(
        &mut self,
        request: Request,
        machine: &mut M,
        built: &mut Option<M::Built>,
    ) -> Result<Response, Fault> {
        let refused = Fault::new;
        match request {
            Request::GetInstance => return Ok(shown(self.instance())),
            Request::GetVersion => return Ok(shown(json!({"firecracker_version": VERSION}))),
            Request::GetVmConfig => return Ok(shown(self.resources.shown())),
            Request::GetMachineConfig => {
                let config = serde_json::to_value(&self.resources.machine_config);
                return Ok(shown(config.unwrap_or_default()));
            }
            Request::PutMachineConfig(config) => self.before()?.machine_config = config,
            Request::PatchMachineConfig(update) => {
                let resources = self.before()?;
                resources.machine_config = update.applied_to(&resources.machine_config)?;
            }
            Request::PutBootSource(source) => self.before()?.boot_source = Some(source),
            Request::PutDrive(drive) => self.before()?.put_drive(drive)?,
            Request::PatchDrive(update) => self.change_drive(&update, machine)?,
            Request::PutNetworkInterface(interface) => {
                self.before()?;
                let note = machine.check_network(&interface).map_err(refused)?;
                self.before()?.put_network(interface)?;
                return Ok(Response {
                    note,
                    ..Response::done()
                });
            }
            // Its limits were checked: they limit nothing.
            Request::PatchNetworkInterface(update) => {
                let mut all = self.after()?.network_interfaces.iter();
                if !all.any(|it| it.iface_id == update.iface_id) {
                    return Err(Fault::field("iface_id", "there is no such interface"));
                }
            }
            Request::PutVsock(vsock) => self.before()?.vsock = Some(vsock),
            Request::PutEntropy(entropy) => self.before()?.entropy = Some(entropy),
            Request::PutSerial(serial) => self.before()?.serial = Some(serial),
            Request::PutLogger(logger) => {
                machine.set_logger(&logger).map_err(refused)?;
                self.resources.logger = Some(logger);
            }
            Request::PutMetrics(metrics) => {
                if self.resources.metrics.is_some() {
                    return Err(Fault::field(
                        "metrics_path",
                        "the metrics have a file already",
                    ));
                }
                machine.set_metrics(&metrics).map_err(refused)?;
                self.resources.metrics = Some(metrics);
            }
            Request::GetBalloon => {
                let balloon = serde_json::to_value(self.resources.known_balloon()?);
                return Ok(shown(balloon.unwrap_or_default()));
            }
            Request::PutBalloon(balloon) => self.before()?.put_balloon(balloon)?,
            Request::PatchBalloon(update) => {
                let balloon = self.after()?.changed_balloon(&update)?;
                machine.set_balloon(balloon.pages()).map_err(refused)?;
                self.resources.balloon = Some(balloon);
            }
            Request::GetStatistics => {
                if self.after()?.known_balloon()?.stats_polling_interval_s == 0 {
                    return Err(Fault::new("The statistics of the balloon are disabled."));
                }
                return Ok(shown(machine.balloon().map_err(refused)?.shown()));
            }
            Request::PatchStatistics(update) => self.after()?.set_interval(&update)?,
            Request::GetMetadata => return Ok(shown(self.metadata.value())),
            Request::PutMetadata(value) => self.metadata.put(value)?,
            Request::PatchMetadata(patch) => self.metadata.patch(patch)?,
            Request::PutMetadataConfig(config) => {
                self.before()?.put_metadata(config.clone())?;
                self.metadata.configure(&config);
            }
            Request::PutAction(info) => match info.action_type {
                Action::InstanceStart => *built = Some(self.start(machine)?),
                Action::FlushMetrics => {
                    let counts = self.counts();
                    machine.flush_metrics(counts).map_err(refused)?;
                }
                Action::SendCtrlAltDel => {
                    self.after()?;
                    machine.press_ctrl_alt_delete().map_err(refused)?;
                }
            },
            Request::PatchVm(update) => {
                self.after()?;
                machine.set_state(update.state).map_err(refused)?;
                self.state = match update.state {
                    VmState::Paused => InstanceState::Paused,
                    VmState::Resumed => InstanceState::Running,
                };
            }
            Request::CreateSnapshot(order) => {
                self.after()?;
                if self.state != InstanceState::Paused {
                    let why = "Pause the microVM before it is saved (PATCH /vm).";
                    return Err(Fault::new(why));
                }
                let result = machine.create_snapshot(&order, &self.resources);
                result.map_err(refused)?;
            }
            Request::LoadSnapshot(order) => {
                self.before()?;
                if !self.resources.are_fresh() {
                    let why = "Loading a microVM snapshot is not allowed after configuring boot-specific \
                               resources.";
                    return Err(Fault::new(why));
                }
                let (saved, restored) = machine.load_snapshot(&order).map_err(refused)?;
                *built = Some(restored);
                self.resources = Resources {
                    logger: self.resources.logger.take(),
                    metrics: self.resources.metrics.take(),
                    ..saved
                };
                if let Some(config) = &self.resources.mmds_config {
                    self.metadata.configure(config);
                }
                self.state = match order.resume_vm {
                    true => InstanceState::Running,
                    false => InstanceState::Paused,
                };
            }
        }
        Ok(Response::done())
    }

    fn start<M: Machine>(&mut self, machine: &mut M) -> Result<M::Built, Fault> {
        if self.before()?.boot_source.is_none() {
            let why = "Cannot start microvm without kernel configuration (PUT /boot-source).";
            return Err(Fault::new(why));
        }
        let built = machine.start(&self.resources).map_err(Fault::new)?;
        self.state = InstanceState::Running;
        Ok(built)
    }

    fn change_drive<M: Machine>(
        &mut self,
        update: &DriveUpdate,
        machine: &mut M,
    ) -> Result<(), Fault> {
        let drives = &mut self.after()?.drives;
        let index = drives.iter().position(|it| it.drive_id == update.drive_id);
        let index = index.ok_or_else(|| Fault::field("drive_id", "there is no such drive"))?;
        let Some(path) = &update.path_on_host else {
            return Ok(());
        };
        let mut drive = drives[index].clone();
        drive.path_on_host = Some(path.clone());
        machine.change_drive(index, &drive).map_err(Fault::new)?;
        drives[index] = drive;
        Ok(())
    }

    /// What was configured, of a machine that has not started.
    fn before(&mut self) -> Result<&mut Resources, Fault> {
        match self.state {
            InstanceState::NotStarted => Ok(&mut self.resources),
            _ => Err(Fault::new(TOO_LATE)),
        }
    }

    /// What was configured, of a machine that has started.
    fn after(&mut self) -> Result<&mut Resources, Fault> {
        match self.state {
            InstanceState::NotStarted => Err(Fault::new(TOO_EARLY)),
            _ => Ok(&mut self.resources),
        }
    }

    fn instance(&self) -> Value {
        json!({
            "app_name": "Firecracker",
            "id": self.id,
            "state": self.state.name(),
            "vmm_version": VERSION,
        })
    }
}

fn shown(value: Value) -> Response {
    Response::with_body(Status::Ok, value.to_string())
}
