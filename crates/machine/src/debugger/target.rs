//! The machine as the crate gdbstub wants it.

use super::memory::Addresses;
use super::registers::Width;
use crate::vm::Vm;
use gdbstub::arch::{Arch, Registers};
use gdbstub::common::Signal;
use gdbstub::outputln;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::singlethread::{
    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
    SingleThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use std::convert::Infallible;
use tollgate_monitor::{WatchedAccess, WatchedMemory};

/// The processor family, whose registers are described for each connection.
#[derive(Debug)]
pub enum X86 {}

/// The values of all registers in gdb's order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Values(Vec<u8>);

impl Registers for Values {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        0
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for byte in &self.0 {
            write_byte(Some(*byte));
        }
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

impl Arch for X86 {
    type Usize = u64;
    type Registers = Values;
    type BreakpointKind = usize;
    type RegId = ();
}

impl Vm {
    fn width(&self) -> Width {
        self.debugger.width()
    }
}

impl Target for Vm {
    type Arch = X86;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, X86, Infallible> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadBase for Vm {
    fn read_registers(&mut self, values: &mut Values) -> TargetResult<(), Self> {
        values.0 = self.width().read(self.vcpu.state());
        Ok(())
    }

    fn write_registers(&mut self, values: &Values) -> TargetResult<(), Self> {
        let width = self.width();
        self.vcpu.change_state(|cpu| width.write(cpu, &values.0));
        Ok(())
    }

    fn read_addrs(&mut self, address: u64, data: &mut [u8]) -> TargetResult<usize, Self> {
        let cpu = self.vcpu.state().clone();
        let addresses = self.debugger.addresses;
        let memory = self.vcpu.memory_mut();
        match addresses.read(&cpu, memory, address, data) {
            0 => Err(TargetError::Errno(14)),
            bytes => Ok(bytes),
        }
    }

    fn write_addrs(&mut self, address: u64, data: &[u8]) -> TargetResult<(), Self> {
        let cpu = self.vcpu.state().clone();
        let addresses = self.debugger.addresses;
        let memory = self.vcpu.memory_mut();
        match addresses.write(&cpu, memory, address, data) {
            true => Ok(()),
            false => Err(TargetError::Errno(14)),
        }
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadResume for Vm {
    fn resume(&mut self, _signal: Option<Signal>) -> Result<(), Infallible> {
        self.debugger.is_stepping = false;
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadSingleStep for Vm {
    fn step(&mut self, _signal: Option<Signal>) -> Result<(), Infallible> {
        self.debugger.is_stepping = true;
        Ok(())
    }
}

impl Breakpoints for Vm {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Vm {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.vcpu.watch(|watched| {
            watched.code.insert(address);
        });
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let mut was_there = false;
        self.vcpu
            .watch(|watched| was_there = watched.code.remove(&address));
        Ok(was_there)
    }
}

impl HwBreakpoint for Vm {
    fn add_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.add_sw_breakpoint(address, kind)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.remove_sw_breakpoint(address, kind)
    }
}

fn watched(address: u64, bytes: u64, kind: WatchKind) -> WatchedMemory {
    WatchedMemory {
        address,
        bytes,
        access: match kind {
            WatchKind::Write => WatchedAccess::Write,
            WatchKind::Read => WatchedAccess::Read,
            WatchKind::ReadWrite => WatchedAccess::Any,
        },
    }
}

impl HwWatchpoint for Vm {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        bytes: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let memory = watched(address, bytes, kind);
        self.vcpu.watch(|watched| watched.memory.push(memory));
        Ok(true)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        bytes: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let memory = watched(address, bytes, kind);
        let mut place = None;
        self.vcpu.watch(|watched| {
            place = watched.memory.iter().position(|known| *known == memory);
            if let Some(place) = place {
                watched.memory.remove(place);
            }
        });
        Ok(place.is_some())
    }
}

impl TargetDescriptionXmlOverride for Vm {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::NonFatal);
        }
        let text = self.width().description();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = text.as_bytes().get(start..).unwrap_or_default();
        let bytes = rest.len().min(length).min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }
}

impl MonitorCmd for Vm {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), Infallible> {
        match command {
            b"exits" => {
                let counts = self.exit_counts();
                for (kind, count) in counts.ranked().iter().filter(|(_, count)| *count != 0) {
                    outputln!(out, "{count:>14} {}", kind.name());
                }
                outputln!(out, "{:>14} in all", counts.total());
            }
            b"info registers" => outputln!(out, "{}", self.vcpu.dump().trim_end()),
            b"info pc" => {
                let address = tollgate_monitor::code_address(self.vcpu.state());
                outputln!(out, "linear {address:#x}");
            }
            b"physical on" => self.debugger.addresses = Addresses::Physical,
            b"physical off" => self.debugger.addresses = Addresses::Linear,
            b"quit" => self.debugger.wants_quit = true,
            _ => outputln!(
                out,
                "exits: how often the guest has exited, by kind\n\
                 info registers: all registers of the processor\n\
                 info pc: the linear address of the next instruction\n\
                 physical on|off: whether memory is read by physical addresses\n\
                 quit: end the machine"
            ),
        }
        Ok(())
    }
}
