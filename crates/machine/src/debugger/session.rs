//! A debugger's session: the machine stops for it, executes single instructions, and continues.

use super::line::{DebugLine, FromDebugger, Outgoing};
use super::memory::Addresses;
use super::packets::{self, Packets};
use super::registers::Width;
use super::state::{Debugger, DebuggerPast};
use crate::vm::Vm;
use gdbstub::common::Signal;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStubBuilder, SingleThreadStopReason};
use gdbstub::target::ext::breakpoints::WatchKind;
use tollgate_monitor::{DebugStop, VcpuStop, Watched, WatchedAccess, code_address};
use tollgate_platform::StopRequest;
use tollgate_x86::state::Activity;

type Stub = GdbStubStateMachine<'static, Vm, Outgoing>;
type Reason = SingleThreadStopReason<u64>;

/// The size of the buffer for one packet in bytes.
const PACKET_BYTES: usize = 16 << 10;

impl Vm {
    /// Lets a debugger at the other end of a line control the machine. With `waits` the machine does
    /// not start before a debugger lets it.
    pub fn attach_debugger(&mut self, line: DebugLine, width: Width, waits: bool) {
        self.debugger = Debugger {
            line: Some(line),
            width,
            holds: waits,
            ..Debugger::default()
        };
    }

    /// Ends the machine's part in a session that its successor continues.
    pub(crate) fn take_debugger(&mut self) -> DebuggerPast<Self> {
        let mut watched = Watched::default();
        self.vcpu.watch(|present| watched = present.clone());
        DebuggerPast(std::mem::take(&mut self.debugger), watched)
    }

    /// Continues the session of an earlier machine.
    pub(crate) fn continue_debugger(
        &mut self,
        DebuggerPast(debugger, watched): DebuggerPast<Self>,
    ) {
        self.debugger = debugger;
        self.debugger.has_stopped_clocks = false;
        self.vcpu.watch(|present| *present = watched);
    }

    /// Handles what has arrived from the debugger. Returns whether it ends the machine.
    pub(crate) fn serve_debugger(&mut self) -> bool {
        while let Some(arrived) = self.debugger.line.as_ref().and_then(DebugLine::take) {
            match arrived {
                FromDebugger::Connected => self.begin_session(),
                FromDebugger::Gone => self.end_session(),
                FromDebugger::Bytes(bytes) => {
                    for byte in bytes {
                        if let Some(piece) = self.debugger.packets.take(byte) {
                            self.take_packet(&piece);
                        }
                    }
                }
            }
        }
        self.debugger.wants_quit
    }

    fn begin_session(&mut self) {
        let Some(line) = &self.debugger.line else {
            return;
        };
        let outgoing = line.outgoing();
        self.debugger.packets = Packets::default();
        let builder = GdbStubBuilder::new(outgoing).packet_buffer_size(PACKET_BYTES);
        let stub = builder.build().ok();
        let stub = stub.and_then(|stub| stub.run_state_machine(self).ok());
        self.debugger.holds = stub.is_some();
        self.debugger.stub = stub;
    }

    /// Lets the machine run as if there were no debugger.
    fn end_session(&mut self) {
        self.debugger.stub = None;
        self.debugger.holds = false;
        self.debugger.addresses = Addresses::Linear;
        self.vcpu.watch(|watched| *watched = Watched::default());
    }

    fn take_packet(&mut self, packet: &[u8]) {
        if let Some(answer) = packets::answer(packet, &mut self.debugger.addresses) {
            if let Some(line) = &self.debugger.line {
                line.outgoing().say(answer);
            }
            return;
        }
        for byte in packet {
            let Some(stub) = self.debugger.stub.take() else {
                return;
            };
            let fed = match stub {
                GdbStubStateMachine::Idle(idle) => idle.incoming_data(self, *byte),
                GdbStubStateMachine::Running(running) => running.incoming_data(self, *byte),
                other => Ok(other),
            };
            match fed {
                Ok(stub) => self.settle(stub),
                // The debugger has broken the protocol.
                Err(_) => self.end_session(),
            }
        }
    }

    /// Does what the session's new state asks for.
    fn settle(&mut self, stub: Stub) {
        match stub {
            GdbStubStateMachine::Idle(_) => self.debugger.stub = Some(stub),
            GdbStubStateMachine::Running(_) => {
                self.debugger.stub = Some(stub);
                if self.debugger.holds {
                    self.go();
                }
            }
            GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                self.debugger.holds = true;
                let reason = Some(Reason::Signal(Signal::SIGINT));
                match interrupt.interrupt_handled(self, reason) {
                    Ok(stub) => self.debugger.stub = Some(stub),
                    Err(_) => self.end_session(),
                }
            }
            GdbStubStateMachine::Disconnected(gone) => {
                self.debugger.wants_quit = gone.get_reason() == DisconnectReason::Kill;
                self.end_session();
                self.debugger.has_let_go = true;
            }
        }
    }

    /// Executes one instruction, or lets the machine run.
    fn go(&mut self) {
        let (is_stepping, cpu) = (self.debugger.is_stepping, self.vcpu.state());
        let address = code_address(cpu);
        self.debugger.has_let_go = true;
        if cpu.activity != Activity::Running {
            // The step ends when an interrupt has been delivered.
            self.vcpu.watch(|watched| watched.stops_next = is_stepping);
            self.debugger.holds = false;
            return;
        }
        let mut has_breakpoint = false;
        self.vcpu
            .watch(|watched| has_breakpoint = watched.code.contains(&address));
        if is_stepping || has_breakpoint {
            let stepped = self.vcpu.step_one(&mut self.pc);
            let mut hit = None;
            self.vcpu.watch(|watched| hit = watched.take_stop());
            // If commands wait, this thread looks at them next.
            let stepped = match stepped {
                Err(VcpuStop::Requested(StopRequest::Attention)) => Ok(()),
                other => other,
            };
            match (stepped, hit) {
                (Ok(()), Some(hit)) => return self.debugger_stopped(hit),
                (Err(stop), _) => {
                    self.debugger.stop = Some(stop);
                    self.debugger.holds = false;
                    return;
                }
                (Ok(()), None) if is_stepping => {
                    return self.debugger_stopped(DebugStop::Stepped);
                }
                (Ok(()), None) => {}
            }
        }
        self.debugger.holds = false;
    }

    /// Reports to the debugger that the processor has stopped for it, if it has.
    pub(crate) fn note_debugger_stop(&mut self) {
        let mut stop = None;
        self.vcpu.watch(|watched| stop = watched.take_stop());
        if let Some(stop) = stop {
            self.debugger_stopped(stop);
        }
    }

    /// Reports to the debugger why the processor has stopped.
    fn debugger_stopped(&mut self, stop: DebugStop) {
        self.report(match stop {
            // Not as a software breakpoint: gdb would look for one at an address without CS's base.
            DebugStop::Breakpoint => Reason::Signal(Signal::SIGTRAP),
            DebugStop::Stepped => Reason::DoneStep,
            DebugStop::Accessed(memory) => Reason::Watch {
                tid: (),
                kind: match memory.access {
                    WatchedAccess::Write => WatchKind::Write,
                    WatchedAccess::Read => WatchKind::Read,
                    WatchedAccess::Any => WatchKind::ReadWrite,
                },
                addr: memory.address,
            },
        });
    }

    /// Reports the end of the machine.
    pub(crate) fn debugger_ends(&mut self) {
        self.report(Reason::Exited(0));
    }

    fn report(&mut self, reason: Reason) {
        match self.debugger.stub.take() {
            Some(GdbStubStateMachine::Running(running)) => {
                self.debugger.holds = true;
                match running.report_stop(self, reason) {
                    Ok(stub) => self.debugger.stub = Some(stub),
                    Err(_) => self.end_session(),
                }
            }
            other => self.debugger.stub = other,
        }
    }
}
