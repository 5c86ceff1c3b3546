//! A second runner, an interpreter of a few instructions, runs under the monitor's own loop.

use super::{Exit, Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::vcpu::{Vcpu, features_of};
use crate::memory::guest_view::GuestView;
use crate::memory::shadow_tables::ShadowChoices;
use iced_x86::{Code, Instruction};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_emulate::operand::{next_rip, read_register, write_register};
use tollgate_engine::policy::instruction_kind::Helper;
use tollgate_engine::requests::Requests;
use tollgate_exits::{ExitKind, Ledger};
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_platform::{BareMachine, Platform, StopRequest};
use tollgate_tlb::{Derived, PageRange};
use tollgate_x86::{CpuState, Exception, Gpr, PhysicalAddress, SegmentRegister, Vector};

/// What the interpreter was asked to forget.
#[derive(Default)]
struct Forgotten {
    everything: u32,
    local: u32,
    pages: Vec<PageRange>,
}

impl Derived for Forgotten {
    fn drop_local(&mut self) {
        self.local += 1;
    }
    fn drop_pages(&mut self, pages: PageRange) {
        self.pages.push(pages);
    }
    fn drop_everything(&mut self) {
        self.everything += 1;
    }
}

/// An interpreter that executes `mov r16, imm16`, `inc r16`, `div r8` and endless loops itself,
/// decodes `out dx, al` as hardware does and passes on its data, and leaves all other instructions
/// to the monitor.
struct Interpreter {
    state: CpuState,
    requests: Arc<Requests>,
    forgotten: Forgotten,
    written: Vec<CodeWrite>,
    /// The number of calls of `translations_changed`.
    moved: u32,
    interrupt_waited: bool,
    control_changes: u32,
    executed_by_monitor: u32,
}

/// The port and the data of an `out dx, al`.
struct PortWrite {
    port: u16,
    value: u32,
    next: u64,
}

impl Interpreter {
    fn new(state: CpuState, requests: &Arc<Requests>) -> Self {
        Self {
            state,
            requests: Arc::clone(requests),
            forgotten: Forgotten::default(),
            written: Vec::new(),
            moved: 0,
            interrupt_waited: false,
            control_changes: 0,
            executed_by_monitor: 0,
        }
    }
}

impl Runner for Interpreter {
    type Entry = Instruction;
    type Exit = PortWrite;
    type Derived = Forgotten;

    fn state(&self) -> &CpuState {
        &self.state
    }

    fn state_mut(&mut self) -> &mut CpuState {
        &mut self.state
    }

    fn state_and_derived(&mut self) -> (&mut CpuState, &mut Forgotten) {
        (&mut self.state, &mut self.forgotten)
    }

    fn registers_changed(&mut self) {}

    fn vectors_changed(&mut self) {}

    fn state_replaced(&mut self) {}

    fn has_left_mode(&self) -> bool {
        true
    }

    fn control_changed(&mut self, _view: &mut GuestView) {
        self.control_changes += 1;
    }

    fn set_time_stamp_offset(&mut self, _offset: u64) {}

    fn interrupt_waits(&mut self, waits: bool) {
        self.interrupt_waited |= waits;
    }

    fn code_written(&mut self, write: CodeWrite, _memory: &mut GuestMemory) {
        self.written.push(write);
    }

    fn set_breakpoints(&mut self, _addresses: &BTreeSet<u64>, _memory: &mut GuestMemory) {
        // Each run is one instruction.
    }

    fn translations_changed(&mut self) {
        self.moved += 1;
    }

    fn start_anew(&mut self) {}

    fn executed<P: Platform>(vcpu: &mut Running<'_, Self, P>, _helper: &Helper, _jumped: bool) {
        vcpu.runner.executed_by_monitor += 1;
    }

    fn entry<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        _extent: Extent,
    ) -> Result<Option<Instruction>, VcpuStop> {
        match vcpu.decode_current() {
            Ok(decoded) => Ok(Some(decoded.helper.instruction)),
            Err(fault) => vcpu.raise(fault).map(|()| None),
        }
    }

    fn run<P: Platform>(
        &mut self,
        instruction: Instruction,
        _view: &mut GuestView,
        _machine: &mut P,
        _ledger: &mut Ledger,
    ) -> Exit<PortWrite> {
        if self.requests.load(Ordering::SeqCst) != 0 {
            return Exit::Interrupted;
        }
        let next = next_rip(&self.state, &instruction);
        match instruction.code() {
            Code::Mov_r16_imm16 => {
                let value = instruction.immediate(1);
                write_register(&mut self.state, instruction.op0_register(), value);
            }
            Code::Inc_r16 => {
                let register = instruction.op0_register();
                let value = read_register(&self.state, register).wrapping_add(1);
                write_register(&mut self.state, register, value);
            }
            Code::Div_rm8 => return Exit::Fault(Exception::new(Vector::DivideError)),
            Code::Jmp_rel8_16 if instruction.near_branch_target() == self.state.rip => {
                while self.requests.load(Ordering::SeqCst) == 0 {
                    std::hint::spin_loop();
                }
                return Exit::Interrupted;
            }
            Code::Out_DX_AL => {
                return Exit::Own(PortWrite {
                    port: self.state.register(Gpr::Rdx) as u16,
                    value: self.state.register(Gpr::Rax) as u32 & 0xff,
                    next,
                });
            }
            _ => return Exit::Instruction,
        }
        self.state.rip = next;
        Exit::Completed
    }

    fn settle<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exit: PortWrite,
    ) -> Result<(), VcpuStop> {
        vcpu.count(ExitKind::PortOut);
        vcpu.platform.port_write(exit.port, 1, exit.value);
        vcpu.due.events = true;
        vcpu.runner.state.rip = exit.next;
        vcpu.completed()
    }
}

/// A machine that records what is written to ports. A write to port F4h ends the guest.
#[derive(Default)]
struct Machine {
    written: Vec<(u16, u32)>,
    interrupt: bool,
    advances: u32,
    last_advance: Option<u32>,
    stop: Option<StopRequest>,
}

impl BareMachine for Machine {
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        match port {
            0xf4 => self.stop = Some(StopRequest::DebugExit(value as u8)),
            _ => self.written.push((port, value)),
        }
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupt
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.interrupt).then_some(0x20)
    }
    fn advance(&mut self) {
        self.advances += 1;
        if self.last_advance == Some(self.advances) {
            self.stop = Some(StopRequest::Quit);
        }
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

const CODE: u64 = 0x1000;
const HANDLER: u64 = 0x2000;
const STACK: u64 = 0x800;

/// A vCPU in real mode at `CODE`, whose vectors 0, 1 and 20h lead to `HANDLER`.
fn vcpu(code: &[u8], handler: &[u8]) -> Vcpu<Interpreter> {
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    memory.write(PhysicalAddress(CODE), code);
    memory.write(PhysicalAddress(HANDLER), handler);
    for vector in [0, 1, 0x20] {
        memory.write_u32(PhysicalAddress(vector * 4), HANDLER as u32);
    }
    let mut state = CpuState::at_reset();
    for register in SegmentRegister::ALL {
        state.load_real_mode_segment(register, 0);
    }
    state.idtr.limit = 0x3ff;
    state.rip = CODE;
    state.gpr[Gpr::Rsp as usize] = STACK;
    let features = features_of(&state);
    Vcpu::with_runner(memory, features, |_, requests| {
        Ok(Interpreter::new(state, requests))
    })
    .unwrap()
}

fn word(vcpu: &mut Vcpu<Interpreter>, address: u64) -> u16 {
    vcpu.memory_mut().read_u32(PhysicalAddress(address)) as u16
}

fn debug_exit(value: u8) -> VcpuStop {
    VcpuStop::Requested(StopRequest::DebugExit(value))
}

#[test]
fn runner_and_monitor_execute_a_program_together() {
    let code = [
        0xb8, 0x34, 0x12, // mov ax, 1234h
        0x50, // push ax
        0x5b, // pop bx
        0x43, // inc bx
        0xba, 0x80, 0x00, // mov dx, 80h
        0xee, // out dx, al
        0xe6, 0xf4, // out f4h, al
    ];
    let (mut vcpu, mut machine) = (vcpu(&code, &[]), Machine::default());
    assert_eq!(vcpu.run(&mut machine), debug_exit(0x34));
    assert_eq!(vcpu.state().register(Gpr::Rbx) & 0xffff, 0x1235);
    assert_eq!(machine.written, [(0x80, 0x34)]);
    // The monitor executed PUSH, POP and the second OUT.
    assert_eq!(vcpu.runner.executed_by_monitor, 3);
    assert_eq!(vcpu.exit_counts().get(ExitKind::PortOut), 2);
}

#[test]
fn an_interrupt_is_let_in_behind_the_shadow_of_sti() {
    // sti; inc cx; inc cx; jmp $
    let code = [0xfb, 0x41, 0x41, 0xeb, 0xfe];
    let mut vcpu = vcpu(&code, &[0xe6, 0xf4]); // out f4h, al
    let mut machine = Machine {
        interrupt: true,
        ..Machine::default()
    };
    assert_eq!(vcpu.run(&mut machine), debug_exit(0));
    assert!(vcpu.runner.interrupt_waited);
    assert_eq!(u64::from(word(&mut vcpu, STACK - 6)), CODE + 2);
    assert_eq!(vcpu.state().register(Gpr::Rcx), 1);
}

#[test]
fn a_fault_is_delivered_before_its_instruction() {
    let code = [0x41, 0xf6, 0xf1]; // inc cx; div cl
    let mut vcpu = vcpu(&code, &[0xe6, 0xf4]);
    assert_eq!(vcpu.run(&mut Machine::default()), debug_exit(0));
    assert_eq!(u64::from(word(&mut vcpu, STACK - 6)), CODE + 1);
    assert_eq!(vcpu.exit_counts().get(ExitKind::GuestException), 1);
}

#[test]
fn the_trap_flag_strikes_behind_what_a_runner_completes() {
    let mut vcpu = vcpu(&[0x41, 0x41], &[0xe6, 0xf4]); // inc cx; inc cx
    vcpu.change_state(|state| state.flags |= 1 << 8);
    assert_eq!(vcpu.run(&mut Machine::default()), debug_exit(0));
    assert_eq!(u64::from(word(&mut vcpu, STACK - 6)), CODE + 1);
}

#[test]
fn a_step_is_one_instruction_of_runner_or_monitor() {
    let mut vcpu = vcpu(&[0x41, 0x51, 0x41], &[]); // inc cx; push cx; inc cx
    let mut machine = Machine::default();
    for expected in [CODE + 1, CODE + 2, CODE + 3] {
        vcpu.step_one(&mut machine).unwrap();
        assert_eq!(vcpu.state().rip, expected);
    }
    assert_eq!(word(&mut vcpu, STACK - 2), 1);
}

#[test]
fn a_kick_ends_a_run() {
    let mut vcpu = vcpu(&[0xeb, 0xfe], &[]); // jmp $
    // The first call of `advance` is at the start of the run.
    let mut machine = Machine {
        last_advance: Some(2),
        ..Machine::default()
    };
    let kick = vcpu.kick();
    let done = Arc::new(AtomicU32::new(0));
    let stop = std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::SeqCst) == 0 {
                kick.kick();
                std::thread::yield_now();
            }
        });
        let stop = vcpu.run(&mut machine);
        done.store(1, Ordering::SeqCst);
        stop
    });
    assert_eq!(stop, VcpuStop::Requested(StopRequest::Quit));
    assert_eq!(vcpu.state().rip, CODE);
}

#[test]
fn a_runner_is_told_of_changed_translations() {
    let code = [
        0x0f, 0x22, 0xd8, // mov cr3, eax
        0x0f, 0x01, 0x38, // invlpg [bx+si]
        0xe6, 0xf4, // out f4h, al
    ];
    let mut vcpu = vcpu(&code, &[]);
    vcpu.view.translations.set_choices(ShadowChoices {
        compares_entries: false,
        ..ShadowChoices::default()
    });
    assert_eq!(vcpu.run(&mut Machine::default()), debug_exit(0));
    let runner = &vcpu.runner;
    assert_eq!(runner.forgotten.local, 1);
    assert_eq!(runner.forgotten.pages.len(), 1);
    assert_eq!(runner.moved, 2);
    let everything = runner.forgotten.everything;
    vcpu.change_state(|state| state.cr3 = 0x1000);
    assert_eq!(vcpu.runner.forgotten.everything, everything + 1);
}

#[test]
fn a_runner_is_told_of_writes_to_what_it_marked_as_code() {
    let mut vcpu = vcpu(&[0x51, 0xe6, 0xf4], &[]); // push cx; out f4h, al
    let page = PhysicalAddress(0);
    vcpu.memory_mut().code().mark(page, STACK);
    assert_eq!(vcpu.run(&mut Machine::default()), debug_exit(0));
    let pages: Vec<u64> = vcpu.runner.written.iter().map(|write| write.page).collect();
    assert_eq!(pages, [0]);
}

#[test]
fn a_runner_is_told_of_changed_control_registers() {
    let code = [
        0x0f, 0x22, 0xc0, // mov cr0, eax
        0x41, // inc cx
        0xe6, 0xf4, // out f4h, al
    ];
    let mut vcpu = vcpu(&code, &[]);
    assert_eq!(vcpu.run(&mut Machine::default()), debug_exit(0));
    // Control registers changed at the start and after MOV CR0.
    assert_eq!(vcpu.runner.control_changes, 2);
}
