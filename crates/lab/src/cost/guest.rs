//! The bare-metal guest in `guests/cost.S` in a machine of Tollgate.

use super::bench::Machine;
use super::image::{
    COMMAND, COMMAND_DONE, Command, FRAME, FRAME_WORDS, GuestMode, IMAGE, IMAGE_ADDRESS, MEMORY,
    READY, SAMPLES, WRONG_DATA,
};
use super::outcome::{Counted, Outcome};
use super::{CostError, ide, virtio};
use crate::experiment::Stop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::Pc;
use tollgate_machine::vm_handle::{VmCommands, VmHandle};
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{CpuState, Cr0, Gpr, PhysicalAddress, SegmentRegister};

/// Size of the code cache in bytes.
const CODE_CACHE: usize = 16 << 20;

/// The guest, which runs in one mode and waits for commands.
pub struct Guest {
    pc: Pc,
    vcpu: Vcpu,
    mode: GuestMode,
    /// Through this handle a request to stop reaches the machine while it runs.
    handle: VmHandle,
    commands: VmCommands,
    stop: Stop,
}

impl Guest {
    /// Builds a machine, and waits until the guest is in `mode`. From then on a request for `stop`
    /// ends the machine, whatever its guest does.
    ///
    /// # Errors
    ///
    /// The host refuses resources, the guest does not reach the mode, or it was stopped before.
    pub fn start(mode: GuestMode, stop: &Stop) -> Result<Self, CostError> {
        let refused = |error: io::Error| CostError::Host(error.to_string());
        let mut memory =
            GuestMemory::new(MEMORY).map_err(|error| CostError::Host(error.to_string()))?;
        memory.write(PhysicalAddress(IMAGE_ADDRESS), IMAGE);
        memory.write_u32(PhysicalAddress(COMMAND), mode.number());
        let mut state = CpuState::at_reset();
        state.load_real_mode_segment(SegmentRegister::Cs, 0);
        state.rip = IMAGE_ADDRESS;
        state.gpr[Gpr::Rsp as usize] = COMMAND;
        state.cr0 = Cr0::ET.bits();
        state.idtr.limit = 0x3ff;
        let mut config = VmConfig::default();
        config.virtual_interrupts.flag = false;
        let devices = virtio::devices(&mut config)?;
        let mut pc = Pc::with_virtio(&config, memory.clone(), Box::new(io::sink()), devices);
        virtio::start(&mut pc, &mut memory);
        ide::add(&mut pc, &mut memory)?;
        let mut vcpu = Vcpu::new(state, memory, CODE_CACHE, false).map_err(refused)?;
        // With this setting, sensitive instructions are exits whose cost can be measured.
        vcpu.change_settings(|settings| settings.virtual_interrupts = config.virtual_interrupts);
        let handle = VmHandle::new();
        let commands = handle.commands();
        pc.connect(Box::new(handle.commands()));
        let (kick, news) = (vcpu.kick(), pc.news());
        let kick: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            news.store(true, Ordering::Release);
            kick.kick();
        });
        commands.install_kick(Arc::clone(&kick));
        pc.set_kick(Some(kick));
        let mut guest = Self {
            pc,
            vcpu,
            mode,
            handle,
            commands,
            stop: stop.clone(),
        };
        guest.run_until_ready("the guest's start")?;
        Ok(guest)
    }

    /// The processor, for changing the ledger's settings.
    pub fn vcpu_mut(&mut self) -> &mut Vcpu {
        &mut self.vcpu
    }

    /// Runs guest code until the processor stops; `None` if the experiment should stop.
    fn run_processor(&mut self) -> Option<VcpuStop> {
        while !self.stop.is_requested() {
            match self.vcpu.run(&mut self.pc) {
                // The request itself says more than the command that it has queued.
                VcpuStop::Requested(StopRequest::Attention) => drop(self.commands.take()),
                stopped => return Some(stopped),
            }
        }
        None
    }

    fn run_until_ready(&mut self, what: &str) -> Result<(), CostError> {
        let (stop, handle) = (self.stop.clone(), self.handle.clone());
        let Some(stopped) = stop.while_running(&handle, || self.run_processor()) else {
            return Err(CostError::Interrupted);
        };
        let why = match stopped {
            VcpuStop::Requested(StopRequest::DebugExit(READY)) => return Ok(()),
            VcpuStop::Requested(StopRequest::DebugExit(_)) => {
                let memory = self.vcpu.memory_mut();
                let words: Vec<String> = (0..FRAME_WORDS)
                    .map(|word| memory.read_u32(PhysicalAddress(FRAME + 4 * word)))
                    .map(|word| format!("{word:08x}"))
                    .collect();
                format!(
                    "an unexpected exception; its frame and CR2: {}",
                    words.join(" ")
                )
            }
            VcpuStop::Requested(request) => format!("the guest asked for {request}"),
            VcpuStop::TripleFault(state) => format!("triple fault\n{state}"),
            VcpuStop::NotImplemented(why) => why,
        };
        Err(CostError::WorkNotDone(format!(
            "{what} ({}): {why}",
            self.mode.name()
        )))
    }
}

impl Machine for Guest {
    fn tsc_khz(&self) -> u64 {
        self.pc.tsc_khz()
    }

    fn run(&mut self, what: &str, command: Command) -> Result<Outcome, CostError> {
        let memory = self.vcpu.memory_mut();
        for (address, word) in command.words(self.mode) {
            memory.write_u32(PhysicalAddress(address), word);
        }
        let before = self.vcpu.exit_counts().clone();
        let fast_paths_before: Vec<_> = self.vcpu.counts().fast_paths().collect();
        self.run_until_ready(what)?;
        let after = self.vcpu.exit_counts().clone();
        let counts = self.vcpu.counts();
        let fast_paths = counts.fast_paths().zip(fast_paths_before);
        let fast_paths = fast_paths.map(|((name, after), (_, before))| (name, after - before));
        let fast_paths = fast_paths.collect();
        let memory = self.vcpu.memory_mut();
        let done = memory.read_u32(PhysicalAddress(COMMAND_DONE));
        let asked = command.repetitions();
        if done != asked {
            return Err(CostError::WorkNotDone(format!(
                "{what} ({}): the guest repeated it {done} times instead of {asked}",
                self.mode.name()
            )));
        }
        let wrong = memory.read_u32(PhysicalAddress(WRONG_DATA));
        if wrong > 0 {
            return Err(CostError::WorkNotDone(format!(
                "{what} ({}): {wrong} of {asked} requests did not bring the disk's data",
                self.mode.name()
            )));
        }
        let values = (0..u64::from(command.count))
            .map(|index| u64::from(memory.read_u32(PhysicalAddress(SAMPLES + 4 * index))))
            .collect();
        Ok(Outcome {
            values,
            counted: Some(Counted {
                before,
                after,
                fast_paths,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Where the test puts code of its own.
    const CODE: u64 = 0x15_0000;

    #[test]
    fn a_stop_ends_a_loop_that_never_ends() {
        let stop = Stop::new();
        let mut guest = Guest::start(GuestMode::Protected, &stop).unwrap();
        // inc dword ptr [COMMAND_DONE]; jmp to it
        let done = (COMMAND_DONE as u32).to_le_bytes();
        let code = [&[0xff, 0x05][..], &done, &[0xeb, 0xf8]].concat();
        let memory = guest.vcpu.memory_mut();
        memory.write(PhysicalAddress(CODE), &code);
        let request = stop.clone();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            request.request();
        });
        let command = Command {
            entry: CODE as u32,
            count: 1,
            repeat: 1,
            ticks: 0,
        };
        let ended = guest.run("a loop", command);
        other.join().unwrap();
        assert_eq!(ended.err(), Some(CostError::Interrupted));
        let none = Guest::start(GuestMode::Real, &stop);
        assert_eq!(none.err(), Some(CostError::Interrupted));
    }
}
