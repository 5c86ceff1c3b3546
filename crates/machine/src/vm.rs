//! A virtual machine: the PC, its processor, and the commands that control it.

mod hot_plug;

use crate::boot::{self, BootError, BootSource, firmware};
use crate::config::{ConfigError, IdeDrive, Realtime, ScsiKind, TripleFaultAction, VmConfig};
use crate::debugger::{Debugger, DebuggerPast};
use crate::device_list;
use crate::devices::virtio::drive_change::DriveChange;
use crate::errands::elsewhere;
use crate::knobs::{self, Settings};
use crate::marks::{Marks, Moment, Span};
use crate::pc::Pc;
use crate::snapshot::Origin;
use crate::snapshot::error::SnapshotError;
use crate::vm_handle::{
    Answer, Command, DriveOrder, Happened, KickFunction, MediumChange, Query, RemovableDrive,
    Shown, SnapshotOrder, State, Status, VmCommands, VmHandle,
};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
pub use tollgate_engine::engine::TranslatedBlock;
use tollgate_exits::blame::DeviceAddress;
use tollgate_exits::reading::{Counters, Reading};
use tollgate_exits::trace::Tracer;
use tollgate_exits::{ExitCounts, Ledger};
use tollgate_host_facts::file_words;
use tollgate_memory::{GuestMemory, PageUse};
use tollgate_monitor::non_register_state::NonRegisterState;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_network::RefusedList;
use tollgate_platform::{MarkName, Platform, StopRequest};
pub use tollgate_platform::{PanicReport, ResetCause};
use tollgate_x86::memory_types::MemoryTypeRanges;
use tollgate_x86::paging::PHYSICAL_ADDRESS_BITS;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, PhysicalAddress};

/// Where the machine's text output goes.
pub struct Consoles {
    /// Receives the output of the first serial port.
    pub serial: Box<dyn Write + Send>,
    /// Receives the output of the debug consoles at ports E9h and 402h.
    pub debug: Box<dyn Write + Send>,
}

/// Why a machine could not be built. Each error prints as one line.
#[derive(Debug)]
pub enum BuildError {
    /// The configuration is invalid.
    Config(ConfigError),
    /// The kernel, or a file that belongs to it, cannot be loaded.
    Boot(BootError),
    /// A disk image, a network or a shared directory cannot be used.
    BackEnd(device_list::BackEndError),
    /// The host has no memory for the guest.
    Memory(tollgate_memory::MemoryError),
    /// A snapshot cannot be used.
    Snapshot(SnapshotError),
    /// The host refused something else.
    Host(io::Error),
}

impl From<SnapshotError> for BuildError {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(formatter),
            Self::Boot(error) => error.fmt(formatter),
            Self::BackEnd(error) => error.fmt(formatter),
            Self::Memory(error) => error.fmt(formatter),
            Self::Snapshot(error) => error.fmt(formatter),
            Self::Host(error) => {
                let why = file_words::cause(error);
                write!(formatter, "the host refused to set up the machine: {why}")
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// How a run of the machine ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunOutcome {
    /// The guest switched itself off.
    PowerOff,
    /// The guest reset itself, in this way.
    Reset(ResetCause),
    /// The guest's kernel reported a panic. The machine has not ended by that: the next [`Vm::run`]
    /// continues, until the kernel's last messages and its reset.
    Panicked(PanicReport),
    /// The processor shut down, with these registers, and the configuration does not turn that into
    /// a reset.
    TripleFault(String),
    /// The guest wrote this byte to the isa-debug-exit device.
    DebugExit(u8),
    /// A command from outside ended the machine.
    Quit,
    /// The guest needs something that this version does not support, described by this text.
    Stopped(String),
}

impl fmt::Display for RunOutcome {
    /// Prints what happened as a clause; for a triple fault, without the registers.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => formatter.write_str("the guest switched itself off"),
            Self::Reset(cause) => write!(formatter, "the guest was reset by {cause}"),
            Self::Panicked(_) => formatter.write_str("the guest's kernel reported a panic"),
            Self::TripleFault(_) => formatter.write_str("triple fault"),
            Self::DebugExit(value) => write!(formatter, "the guest wrote {value} to port F4h"),
            Self::Quit => formatter.write_str("the machine was ended from outside"),
            Self::Stopped(why) => formatter.write_str(why),
        }
    }
}

/// The marks between which exits are traced.
#[derive(Default)]
struct TracePlan {
    from: Option<MarkName>,
    to: Option<MarkName>,
    /// Receives the events of the trace. It is kept here while the trace has not begun or is
    /// paused.
    waiting: Option<Tracer>,
}

/// What survives a restart of the machine.
pub struct Past {
    debugger: DebuggerPast<Vm>,
    ledger: Ledger,
    marks: Marks,
    trace: TracePlan,
    knobs_turned: bool,
    happened: Happened,
}

/// A machine that is ready to run on the thread that calls [`Vm::run`].
pub struct Vm {
    pub(crate) pc: Pc,
    pub(crate) vcpu: Vcpu,
    memory: GuestMemory,
    commands: VmCommands,
    /// The configuration that the machine was built from, with the present values of the knobs.
    config: VmConfig,
    /// Whether a knob was changed after the machine was built.
    pub(crate) knobs_turned: bool,
    /// The values of all counters, except those of exits, when the ledger was last reset.
    counted_before: Counters,
    /// The number of exits before the ledger was last reset.
    exits_before: u64,
    marks: Marks,
    trace: TracePlan,
    happened: Happened,
    /// The snapshot that the machine was restored from.
    pub(crate) origin: Option<Origin>,
    /// The debugger that controls the machine, if there is one.
    pub(crate) debugger: Debugger<Self>,
}

impl Vm {
    /// Builds a machine and loads its kernel. Commands arrive through `handle`.
    ///
    /// # Errors
    /// [`BuildError`], which prints as one line for the user.
    pub fn build(
        config: &VmConfig,
        consoles: Consoles,
        handle: &VmHandle,
    ) -> Result<Self, BuildError> {
        let vm = Self::assemble(config, consoles, handle, |memory| {
            if config.firmware.is_some() {
                return Ok(CpuState::at_reset());
            }
            let start = boot::load(&BootSource::of(config), memory).map_err(BuildError::Boot)?;
            if let Some(smbios) = &config.smbios {
                smbios.write(config.memory_bytes, memory);
            }
            Ok(CpuState {
                memory_types: MemoryTypeRanges::as_firmware_leaves_them(PHYSICAL_ADDRESS_BITS),
                ..start
            })
        })?;
        vm.publish(State::Starting);
        Ok(vm)
    }

    /// Makes a machine. `fill` is called for its memory before anything else knows it, and returns
    /// the processor's first state.
    pub(crate) fn assemble(
        config: &VmConfig,
        consoles: Consoles,
        handle: &VmHandle,
        fill: impl FnOnce(&mut GuestMemory) -> Result<CpuState, BuildError>,
    ) -> Result<Self, BuildError> {
        config.validate().map_err(BuildError::Config)?;
        let back_ends = device_list::BackEnds::open(config).map_err(BuildError::BackEnd)?;
        let mut memory =
            GuestMemory::with_backing(config.memory_bytes, config.memory_backing.backing())
                .map_err(BuildError::Memory)?;
        let mut state = fill(&mut memory)?;
        let rom = match &config.firmware {
            Some(path) if config.flash.is_empty() => {
                Some(firmware::load(path, &mut memory).map_err(BuildError::Boot)?)
            }
            _ => None,
        };
        state.model = config.cpu.model;
        state.added_features = config.cpu.added;
        state.paravirtual = config.paravirtual;
        let mut pc = Pc::with_back_ends(config, memory.clone(), consoles.serial, back_ends);
        if config.firmware.is_some() {
            pc.set_firmware(rom).map_err(BuildError::Memory)?;
        }
        pc.set_debug_output(consoles.debug);
        pc.connect(Box::new(handle.commands()));
        handle.commands().set_refusals(pc.refusals().to_vec());
        handle.set_balloon(pc.balloon());
        let cache = usize::try_from(config.code_cache_bytes).unwrap_or(usize::MAX);
        let mut vcpu = Vcpu::new(state, memory.clone(), cache, config.verify_code)
            .map_err(BuildError::Host)?;
        vcpu.set_verify_shadow(config.verify_shadow);
        vcpu.set_register_map(config.register_map.map());
        knobs::turn(&mut vcpu, config);
        if config.count_instructions {
            vcpu.set_counts_instructions(true);
        }
        Ok(Self {
            pc,
            vcpu,
            memory,
            commands: handle.commands(),
            config: config.clone(),
            knobs_turned: false,
            counted_before: Counters::default(),
            exits_before: 0,
            marks: Marks::default(),
            trace: TracePlan::default(),
            happened: Happened::default(),
            origin: None,
            debugger: Debugger::default(),
        })
    }

    /// Ends the devices, their threads and what they use of the host, and leaves the memory of the
    /// guest and of its translations to the end of the process, where the host gives back all of it
    /// together. For a process that ends next: it takes less time than dropping the machine.
    pub fn end_with_process(self) {
        let Self {
            pc, vcpu, memory, ..
        } = self;
        drop(pc);
        std::mem::forget((vcpu, memory));
    }

    /// Sets where the output of the second serial port, and what is printed, goes.
    pub fn set_other_outputs(
        &mut self,
        serial: Box<dyn Write + Send>,
        printer: Box<dyn Write + Send>,
    ) {
        self.pc.set_other_outputs(serial, printer);
    }

    /// Runs the machine on the calling thread until it ends.
    pub fn run(&mut self) -> RunOutcome {
        let kick = self.vcpu.kick();
        let news = self.pc.news();
        let kick: KickFunction = Arc::new(move || {
            news.store(true, Ordering::Release);
            kick.kick();
        });
        self.commands.install_kick(Arc::clone(&kick));
        self.pc.set_kick(Some(kick));
        let outcome = self.run_until_end();
        self.note_ejected();
        if !matches!(outcome, RunOutcome::Reset(_) | RunOutcome::Panicked(_)) {
            self.debugger_ends();
        }
        self.commands.remove_kick();
        self.pc.set_kick(None);
        self.pc.flush_output();
        match outcome {
            RunOutcome::Reset(cause) => self.happened.resets.add(cause),
            RunOutcome::Panicked(_) => self.happened.panics += 1,
            _ => {}
        }
        outcome
    }

    fn run_until_end(&mut self) -> RunOutcome {
        // A machine that begins paused never seems to run.
        if (self.debugger.holds() || self.commands.has_commands()) && self.obey() {
            return RunOutcome::Quit;
        }
        self.publish(State::Running);
        loop {
            let stop = self.debugger.take_stop();
            match stop.unwrap_or_else(|| self.vcpu.run(&mut self.pc)) {
                VcpuStop::Requested(StopRequest::Attention) => {
                    self.note_debugger_stop();
                    if self.obey() {
                        return RunOutcome::Quit;
                    }
                }
                VcpuStop::Requested(StopRequest::PowerOff) => return RunOutcome::PowerOff,
                VcpuStop::Requested(StopRequest::Reset(cause)) => return RunOutcome::Reset(cause),
                VcpuStop::Requested(StopRequest::ProcessorReset(cause)) => {
                    if !self.reset_processor() {
                        return RunOutcome::Reset(cause);
                    }
                }
                VcpuStop::Requested(StopRequest::Panic(report)) => {
                    return RunOutcome::Panicked(report);
                }
                VcpuStop::Requested(StopRequest::Mark(name)) => self.set_mark(name),
                VcpuStop::Requested(StopRequest::DebugExit(value)) => {
                    return RunOutcome::DebugExit(value);
                }
                VcpuStop::Requested(StopRequest::Quit) => return RunOutcome::Quit,
                VcpuStop::TripleFault(registers) => {
                    if self.config.triple_fault == TripleFaultAction::Stop {
                        return RunOutcome::TripleFault(registers);
                    }
                    if !self.reset_processor() {
                        return RunOutcome::Reset(ResetCause::TripleFault);
                    }
                }
                VcpuStop::NotImplemented(why) => return RunOutcome::Stopped(why),
            }
        }
    }

    /// Signals INIT to the processor if there is memory at the reset vector: devices and memory
    /// keep their state. Returns false without firmware: no code could restart the machine, so the
    /// whole machine must be reset.
    fn reset_processor(&mut self) -> bool {
        const RESET_VECTOR: u64 = 0xffff_fff0;
        let page = PhysicalAddress(RESET_VECTOR).page();
        if self.memory.ram().page_use(page) == PageUse::Device {
            return false;
        }
        self.pc.reset_processor();
        self.vcpu.change_state(|state| *state = state.after_init());
        self.vcpu
            .set_non_register_state(NonRegisterState::default());
        self.vcpu.clock_changed();
        true
    }

    /// Obeys an order about drives, in the machine and in the configuration for its next restart.
    fn obey_drive_order(&mut self, order: DriveOrder) -> Result<(), String> {
        match order {
            DriveOrder::Medium(change) => self.change_medium(change),
            DriveOrder::Resize(drive, bytes) => {
                self.pc.change_drive(&DriveChange::Size { drive, bytes })
            }
            DriveOrder::PlugIn(drive) => {
                self.pc.change_drive(&DriveChange::PlugIn(drive.clone()))?;
                self.config.scsi_drives.push(drive);
                Ok(())
            }
            DriveOrder::Unplug(address) => {
                self.pc.change_drive(&DriveChange::Unplug(address))?;
                let drives = &mut self.config.scsi_drives;
                drives.retain(|drive| drive.address != address);
                self.config.scsi_controller = true;
                Ok(())
            }
            DriveOrder::AddFunction(function) => self.add_function(function),
            DriveOrder::RemoveFunction(slot) => self.pc.ask_for_ejection(slot),
        }
    }

    /// Changes the medium of a drive, in the machine and in the configuration for its next restart.
    fn change_medium(&mut self, change: MediumChange) -> Result<(), String> {
        let MediumChange {
            drive,
            image,
            force,
        } = change;
        match drive {
            RemovableDrive::Floppy(drive) => {
                let drive = usize::from(drive);
                let changed = self.pc.change_floppy(drive, image.as_ref());
                if let Some(floppy) = self.config.floppies.get_mut(drive) {
                    *floppy = image.filter(|_| changed.is_ok());
                }
                changed
            }
            RemovableDrive::CdRom(drive) => {
                let place = IdeDrive::cd_rom_place(&self.config.ide_drives, drive.into())
                    .ok_or("the machine has no such drive")?;
                let changed = self.pc.change_disc(place, image.as_ref(), force);
                if changed.is_ok() {
                    self.config.ide_drives[place] = Some(IdeDrive::CdRom(image));
                }
                changed
            }
            RemovableDrive::Virtio(disk) => {
                let known = self.config.drives.get_mut(disk);
                let known = known.ok_or("the machine has no such disk")?;
                let image = image.ok_or("a virtio disk cannot be empty")?;
                let changed = self.pc.change_drive(&DriveChange::Image {
                    disk,
                    image: image.clone(),
                });
                if changed.is_ok() {
                    *known = image;
                }
                changed
            }
            RemovableDrive::Scsi(address) => {
                self.pc.change_drive(&DriveChange::Disc {
                    address,
                    image: image.clone(),
                    force,
                })?;
                let mut drives = self.config.scsi_drives.iter_mut();
                if let Some(drive) = drives.find(|drive| drive.address == address) {
                    drive.kind = ScsiKind::CdRom(image);
                }
                Ok(())
            }
        }
    }

    /// Returns the present configuration, with all changes that were made while the machine ran.
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Returns the guest's memory. It must not be written while [`Vm::run`] runs.
    pub fn memory(&self) -> GuestMemory {
        self.memory.clone()
    }

    /// Returns what the machine's networks have refused to the guest.
    pub fn refused(&self) -> RefusedList {
        RefusedList::of_all(self.pc.refusals())
    }

    /// Returns the number of exits so far, by kind.
    pub fn exit_counts(&self) -> &ExitCounts {
        self.vcpu.exit_counts()
    }

    /// Returns the ledger: exits, their costs, and where time was spent.
    pub fn ledger(&self) -> &Ledger {
        self.vcpu.ledger()
    }

    /// Returns a reading of the ledger since the machine's start or its last reset. It is exact
    /// whenever `run` does not run.
    pub fn reading(&self) -> Reading {
        let counters = self.counters().since(&self.counted_before);
        let reading = Reading::of(self.ledger(), self.tsc_khz(), self.system_call_entry());
        self.completed(reading.with_counters(counters))
    }

    /// Returns a reading of the ledger for the time between two marks.
    ///
    /// # Errors
    /// A mark was not set, or the marks are in the wrong order.
    pub fn reading_of(&self, span: Span) -> Result<Reading, String> {
        let moment = self
            .marks
            .count(span, &self.counted_before, self.moment())?;
        let reading = moment.reading(self.tsc_khz(), self.system_call_entry());
        Ok(self.completed(reading))
    }

    /// Adds to a reading the facts that are not counted.
    fn completed(&self, reading: Reading) -> Reading {
        Reading {
            settings: self.settings().names().collect(),
            settings_changed: self.knobs_turned,
            instruction_steps: self.vcpu.instruction_steps().collect(),
            devices: self.devices_accessed(),
            programs: self.vcpu.program_names().collect(),
            ..reading
        }
    }

    /// Returns the guest's system call entry: SYSENTER_EIP, or LSTAR in IA-32e mode.
    fn system_call_entry(&self) -> u64 {
        self.vcpu.state().system_call_entry()
    }

    /// Returns all counters, except those of exits, since the machine's start.
    fn counters(&self) -> Counters {
        let counts = self.vcpu.counts();
        let dropped = [("dropped", counts.stops.dropped)];
        Counters {
            instructions: counts.instructions,
            host_code: counts.host_code,
            fast_paths: counts.fast_paths().collect(),
            space_loads: counts.space_loads.named().to_vec(),
            shadow_tables: counts.shadow_tables(),
            instruction_cache: counts.instruction_cache.named().to_vec(),
            share_requests: self.pc.share_requests(),
            stops: counts.stops.stopped,
            resumed: counts.stops.resumed.into_iter().chain(dropped).collect(),
            break_even: counts.stops.break_even,
        }
    }

    /// Returns a copy of the present accounts.
    fn moment(&self) -> Moment {
        Moment {
            accounts: self.ledger().accounts().clone(),
            counters: self.counters(),
        }
    }

    /// Sets a mark. Must not be called while `run` runs.
    fn set_mark(&mut self, name: MarkName) {
        self.marks.set(name, self.pc.now().0, self.moment());
        if self.trace.to == Some(name) {
            self.pause_trace();
        }
        if self.trace.from == Some(name)
            && let Some(tracer) = self.trace.waiting.take()
        {
            self.begin_trace(tracer);
        }
    }

    /// Returns the names of the devices that sampled exits accessed.
    fn devices_accessed(&self) -> Vec<(DeviceAddress, String)> {
        let rows = self.ledger().blame().rows();
        let addresses: BTreeSet<DeviceAddress> = rows.filter_map(|row| row.device).collect();
        let named = addresses.into_iter().filter_map(|address| {
            let name = self.pc.device_name(address)?;
            Some((address, name.to_owned()))
        });
        named.collect()
    }

    /// Enables a test mode, see [`Vcpu::force_requests`].
    pub fn force_requests(&mut self, every: u64) {
        self.vcpu.force_requests(every);
    }

    /// Resets the ledger. Must not be called while `run` runs.
    fn reset_ledger(&mut self) {
        self.counted_before = self.counters();
        self.marks.clear();
        self.exits_before += self.exit_counts().total();
        self.knobs_turned = false;
        self.vcpu.reset_instruction_steps();
        let mut before = self.vcpu.take_ledger();
        if let Some(tracer) = before.take_tracer() {
            self.begin_trace(tracer);
        }
    }

    /// Returns the present values of the knobs.
    pub fn settings(&self) -> Settings {
        Settings::of(&self.config)
    }

    /// Returns the frequency of the time-stamp counter in which the ledger counts, in kilohertz.
    pub fn tsc_khz(&self) -> u64 {
        self.pc.tsc_khz()
    }

    /// Times every exit and hands it to `tracer`, from the mark `from` (or from now on) until the
    /// mark `to`. If these marks are set again, the trace starts and stops again.
    pub fn plan_trace(&mut self, tracer: Tracer, from: Option<MarkName>, to: Option<MarkName>) {
        (self.trace.from, self.trace.to) = (from, to);
        match from {
            Some(_) => self.trace.waiting = Some(tracer),
            None => self.begin_trace(tracer),
        }
    }

    /// Keeps the tracer until the trace continues.
    fn pause_trace(&mut self) {
        let mut ledger = self.vcpu.take_ledger();
        if let Some(mut tracer) = ledger.take_tracer() {
            tracer.flush();
            self.trace.waiting = Some(tracer);
        }
        self.vcpu.continue_ledger(ledger);
    }

    /// Times every exit from now on and hands it to `tracer`.
    fn begin_trace(&mut self, tracer: Tracer) {
        let mut ledger = self.vcpu.take_ledger();
        ledger.begin_trace(tracer);
        self.vcpu.continue_ledger(ledger);
    }

    /// Ends a trace and hands over its last events.
    pub fn end_trace(&mut self) {
        self.trace.waiting = None;
        let mut ledger = self.vcpu.take_ledger();
        ledger.end_trace();
        self.vcpu.continue_ledger(ledger);
    }

    /// Returns the translated code as it is now in the host's memory.
    pub fn translated_blocks(&self) -> impl Iterator<Item = TranslatedBlock> {
        self.vcpu.translated_blocks()
    }

    /// Ends the machine and returns what survives a restart.
    pub fn into_past(mut self) -> Past {
        Past {
            debugger: self.take_debugger(),
            ledger: self.vcpu.take_ledger(),
            marks: self.marks,
            trace: self.trace,
            knobs_turned: self.knobs_turned,
            happened: self.happened,
        }
    }

    /// Continues the ledger of an earlier machine.
    pub fn continue_past(&mut self, past: Past) {
        self.continue_debugger(past.debugger);
        self.vcpu.continue_ledger(past.ledger);
        self.marks = past.marks;
        self.marks.forget_counters();
        self.trace = past.trace;
        self.knobs_turned |= past.knobs_turned;
        self.happened = past.happened;
    }

    /// Executes the waiting commands, and stays here while the machine is paused. Returns true if a
    /// command ends the machine.
    fn obey(&mut self) -> bool {
        let mut paused = false;
        loop {
            self.note_ejected();
            let (mut reading_wanted, mut reset_wanted) = (false, false);
            let mut screen_wanted = None;
            let mut rest = None;
            let mut queries = Vec::new();
            let before = self.settings();
            for command in self.commands.take() {
                match command {
                    Command::Quit => return true,
                    Command::Pause => {
                        if !paused {
                            self.pc.pause();
                        }
                        paused = true;
                        self.pc.flush_output();
                    }
                    Command::Resume => self.end_pause(&mut paused),
                    Command::Rest(time) => rest = Some(time),
                    Command::PowerButton => self.pc.press_power_button(),
                    Command::ReportStatus | Command::ServeDebugger => {}
                    Command::ChangeDrives => {
                        for (request, order) in self.commands.take_drive_orders() {
                            let done = elsewhere(self, |vm| vm.obey_drive_order(order));
                            self.commands.publish_drive_order(request, done);
                        }
                    }
                    Command::ObeySnapshotOrders => {
                        for (request, order) in self.commands.take_snapshot_orders() {
                            let result = elsewhere(self, |vm| match &order {
                                SnapshotOrder::Write { path, base, .. } => match base {
                                    Some(base) => vm.write_difference(path, base),
                                    None => vm.write_snapshot(path),
                                },
                                SnapshotOrder::PutBack => vm.put_back(),
                            });
                            if result.is_ok() && order.pauses() && !paused {
                                self.pc.pause();
                                paused = true;
                            }
                            let result = result.map_err(|error| error.to_string());
                            self.commands.publish_snapshot(request, result);
                        }
                    }
                    Command::Inspect => {
                        for (request, inspection) in self.commands.take_inspections() {
                            let cpu = self.vcpu.state().clone();
                            let interrupts = self.pc.interrupts_described();
                            let memory = self.vcpu.memory_mut();
                            let seen = inspection.carry_out(cpu, memory, interrupts);
                            self.commands.publish_inspected(request, seen);
                        }
                    }
                    Command::ReportReading => reading_wanted = true,
                    Command::ResetLedger => reset_wanted = true,
                    Command::Query(query, number) => queries.push((query, number)),
                    Command::ReportScreen(picture) => {
                        screen_wanted = Some(screen_wanted.unwrap_or(false) || picture);
                    }
                    Command::Set(assignment) => assignment.apply(&mut self.config),
                }
            }
            if self.serve_debugger() {
                return true;
            }
            if self.debugger.take_let_go() && paused {
                self.end_pause(&mut paused);
                self.commands.note_resumed();
            }
            let held = self.debugger.holds();
            if held != self.debugger.has_stopped_clocks && !paused {
                match held {
                    true => self.pc.pause(),
                    false => self.pc.resume(),
                }
                self.debugger.has_stopped_clocks = held;
            }
            if self.settings() != before {
                self.knobs_turned = true;
                knobs::turn(&mut self.vcpu, &self.config);
            }
            if reset_wanted {
                self.reset_ledger();
                self.commands.forget_ledger();
            }
            if let Some(with_picture) = screen_wanted {
                let began = Instant::now();
                let screen = self.pc.screen();
                let picture = with_picture.then(|| self.pc.picture()).flatten();
                self.commands.publish_screen(Shown {
                    screen,
                    picture,
                    took: began.elapsed(),
                });
            }
            if reading_wanted {
                self.commands.publish_reading(self.reading());
            }
            for (query, number) in queries {
                let answer = self.answer(query);
                self.commands.publish_answer(number, answer);
            }
            self.publish(match self.vcpu.state().activity {
                _ if paused || held => State::Paused,
                Activity::Halted => State::Halted,
                _ => State::Running,
            });
            if let Some(time) = rest
                && !paused
                && !held
                && self.commands.wait_for_command(Some(time))
            {
                continue;
            }
            if !paused && !held {
                self.vcpu.clock_changed();
                return false;
            }
            self.commands
                .wait_for_command(Some(Duration::from_secs(60)));
        }
    }

    /// Lets guest time pass again if the machine is paused.
    fn end_pause(&mut self, paused: &mut bool) {
        match self.config.realtime {
            _ if !*paused => {}
            Realtime::Step => self.pc.resume_and_catch_up(),
            Realtime::Keep => self.pc.resume(),
        }
        *paused = false;
    }

    /// Counts up to this moment and sets a mark here.
    fn answer(&mut self, query: Query) -> Answer {
        let reading = query.span.map(|span| self.reading_of(span));
        if let Some(name) = query.mark {
            self.set_mark(name);
        }
        Answer {
            reading,
            marks: self.marks.names(),
        }
    }

    fn publish(&self, state: State) {
        let status = Status {
            state,
            uptime_ns: 0,
            guest_time_ns: self.pc.now().0,
            exits: self.exits_before + self.exit_counts().total(),
            code_cache: self.vcpu.code_cache(),
            happened: self.happened,
            settings: self.settings(),
        };
        self.commands.publish(status);
    }
}
