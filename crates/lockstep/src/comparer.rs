//! The loop that steps both sides and compares them.

use crate::compare::{Difference, differences, undefined_flags};
use crate::history::{Event, History};
use crate::instruction_kind::{changes_hidden, is_input, may_be_refused, repeats, stores_image};
use crate::reference::{Expectation, Progress, Reference};
use crate::registers::Registers;
use crate::subject::{Access, Subject};
use iced_x86::Instruction;
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::FileExt;
use tollgate_monitor::VcpuStop;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::flags::Flags;

/// Where the comparison ends, and what is not compared.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of instructions to compare.
    pub steps: u64,
    /// The linear address at which the comparison ends.
    pub until: Option<u64>,
    /// The text on a line of the screen at which the comparison ends.
    pub until_text: Option<String>,
    /// Bits of EFLAGS that are never compared.
    pub ignored_flags: u32,
    /// The number of differences that are shown and ignored, if EIP does not differ.
    pub keep_going: u32,
}

/// How the comparison ended.
#[derive(Debug)]
pub enum Ending {
    /// The maximum number of steps was reached.
    StepsDone,
    /// The address or the text at which the comparison ends was reached.
    Reached,
    /// Both sides ended, or both wait for an interrupt that will not occur: a description.
    BothEnded(String),
    /// The two sides differ.
    Differs(Box<Parting>),
}

/// The first instruction whose outcome differs.
#[derive(Debug)]
pub struct Parting {
    /// The registers before the instruction.
    pub before: Registers,
    /// The differences after the instruction.
    pub differences: Vec<Difference>,
    /// Tollgate's registers after the instruction.
    pub ours: Registers,
    /// QEMU's registers after the instruction.
    pub theirs: Registers,
    /// The reason, if it is not a register.
    pub remark: Option<String>,
}

/// Both sides of the comparison.
pub struct Comparer<R: Reference> {
    pub(crate) subject: Subject,
    pub(crate) reference: R,
    limits: Limits,
    /// The last instructions, for the report.
    pub history: History,
    /// Number of steps made.
    pub count: u64,
    /// Number of steps whose result was taken from QEMU.
    pub inputs: u64,
    /// Number of interrupts that were delivered because QEMU delivered them.
    pub interrupts: u64,
    /// The places of ignored differences: CS and EIP.
    passed: HashSet<(u16, u64)>,
    /// Descriptions of ignored differences, each once.
    pub notes: Vec<String>,
}

/// Number of instructions between two checks of the screen.
const SCREEN_INTERVAL: u64 = 20_000;
/// Number of double words in an exception's frame up to EFLAGS, with an error code.
const FRAME_WORDS: u32 = 4;
/// Number of double words in such a frame if values have 8 bytes.
const LONG_FRAME_WORDS: u32 = 7;
/// The EFLAGS that QEMU's exceptions push have RF clear; on processors it is set.
const RESUME_FLAG: u32 = Flags::RF.bits() as u32;

impl<R: Reference> Comparer<R> {
    /// Starts with both sides in the same state.
    pub fn new(subject: Subject, reference: R, limits: Limits) -> Self {
        Self {
            subject,
            reference,
            limits: Limits {
                ignored_flags: limits.ignored_flags | RESUME_FLAG,
                ..limits
            },
            history: History::default(),
            count: 0,
            inputs: 0,
            interrupts: 0,
            passed: HashSet::new(),
            notes: Vec::new(),
        }
    }

    /// Makes steps until something ends the comparison.
    ///
    /// # Errors
    ///
    /// The communication with QEMU fails.
    pub fn run(&mut self) -> io::Result<Ending> {
        while self.count < self.limits.steps {
            if self.limits.until == Some(self.subject.linear()) {
                return Ok(Ending::Reached);
            }
            if self.count.is_multiple_of(SCREEN_INTERVAL) && self.shows_text() {
                return Ok(Ending::Reached);
            }
            if let Some(ending) = self.step()? {
                return Ok(ending);
            }
            self.count += 1;
        }
        Ok(Ending::StepsDone)
    }

    /// The lines of Tollgate's text screen that are not empty.
    pub fn screen_lines(&mut self) -> Vec<String> {
        let lines = self.subject.screen_lines().into_iter();
        let lines = lines.map(|line| line.trim_end().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    }

    fn shows_text(&mut self) -> bool {
        let Some(text) = self.limits.until_text.clone() else {
            return false;
        };
        let lines = self.screen_lines();
        lines.iter().any(|line| line.contains(&text))
    }

    fn step(&mut self) -> io::Result<Option<Ending>> {
        let before = self.subject.registers();
        let linear = self.subject.linear();
        let instruction = self.subject.next_instruction();
        let mut expected = Expectation::default();
        let mut accesses = Vec::new();
        let cs = before.selectors[1];
        match &instruction {
            Some(instruction) => {
                self.history
                    .push(self.count, Event::Instruction(cs, *instruction));
                expected = Expectation {
                    repeats: repeats(instruction),
                    changes_hidden: changes_hidden(instruction),
                    next: linear.wrapping_add(instruction.len() as u64),
                };
                if self.reference.memory().is_some() {
                    accesses = self.subject.accesses(instruction);
                }
            }
            None => self
                .history
                .push(self.count, Event::FetchFault(cs, before.rip)),
        }
        let halts = instruction
            .is_some_and(|instruction| instruction.mnemonic() == iced_x86::Mnemonic::Hlt);
        if halts && self.reference.memory().is_some() {
            return Ok(Some(Ending::BothEnded(
                "both execute HLT, and interrupts are not delivered".to_owned(),
            )));
        }
        let progress = self.reference.step(expected)?;
        if let Some(devices) = self.reference.devices() {
            self.subject.expect_devices(devices);
        }
        let remaining = match instruction {
            Some(instruction) if expected.repeats => {
                self.interrupted_repetitions(&before, &instruction)
            }
            _ => None,
        };
        if progress != Progress::Held {
            let exceptions = self.subject.exceptions();
            if let Some(stop) = self.step_subject(&before, remaining).err() {
                return Ok(Some(self.stopped(stop, progress, before)));
            }
            if self.subject.exceptions() != exceptions {
                self.clear_pushed_resume_flag(&before);
            }
        }
        if progress == Progress::Gone {
            return Ok(Some(self.parting(
                before,
                Vec::new(),
                Some("QEMU ended, Tollgate continues".to_owned()),
            )));
        }
        if let Some(vector) = self.delivered_interrupt(self.subject.registers().rip) {
            if let Some(instruction) = &instruction {
                // The frame must contain the flags that QEMU's contains. QEMU still has them in its
                // register.
                self.take_undefined_flags(undefined_flags(instruction));
            }
            self.history.push(self.count, Event::Interrupt(vector));
            self.interrupts += 1;
            if let Err(stop) = self.subject.interrupt(vector) {
                return Ok(Some(self.stopped(stop, progress, before)));
            }
        }
        self.take_moved()?;
        let executed = instruction.as_ref().filter(|_| progress != Progress::Held);
        let ending = self.look(before, executed, &accesses)?;
        self.pass_over(ending)
    }

    /// Reports a difference and continues with QEMU's results, if the limits permit to ignore it.
    fn pass_over(&mut self, ending: Option<Ending>) -> io::Result<Option<Ending>> {
        let Some(Ending::Differs(parting)) = &ending else {
            return Ok(ending);
        };
        let passable = parting.remark.is_none() && parting.ours.rip == parting.theirs.rip;
        if !passable || self.limits.keep_going == 0 {
            return Ok(ending);
        }
        let place = (parting.before.selectors[1], parting.before.rip);
        if self.passed.insert(place) {
            self.limits.keep_going -= 1;
            println!("{}", crate::report::summary(parting, &self.history));
        }
        let theirs = parting.theirs.clone();
        self.subject.change(|state| theirs.put_all(state));
        let memory: Vec<PhysicalAddress> = parting
            .differences
            .iter()
            .filter_map(|found| found.physical)
            .collect();
        for physical in memory {
            let mut data = [0; 4];
            if self
                .reference
                .memory()
                .is_some_and(|memory| memory.read_exact_at(&mut data, physical.0).is_ok())
            {
                self.subject.write(physical, &data);
            }
        }
        Ok(None)
    }

    /// Whether QEMU is at this offset of our code segment.
    fn is_at(&self, rip: u64) -> bool {
        let theirs = self.reference.registers();
        theirs.rip == rip && theirs.selectors[1] == self.subject.registers().selectors[1]
    }

    /// The interrupt that QEMU delivered at our present instruction, if that explains its
    /// registers.
    fn delivered_interrupt(&mut self, our_rip: u64) -> Option<u8> {
        let theirs = self.reference.registers().clone();
        let enabled = self.subject.registers().eflags & Flags::IF.bits() as u32 != 0;
        if !self.reference.takes_interrupts() || self.is_at(our_rip) {
            return None;
        }
        self.subject.vector_of_handler(&theirs, enabled)
    }

    /// Compares both sides, with all known exceptions.
    fn look(
        &mut self,
        before: Registers,
        instruction: Option<&Instruction>,
        accesses: &[Access],
    ) -> io::Result<Option<Ending>> {
        let mut ignored = self.limits.ignored_flags;
        if let Some(instruction) = instruction {
            ignored |= undefined_flags(instruction);
            if is_input(instruction) || may_be_refused(instruction) {
                self.take_input(instruction, &before)?;
            }
            if stores_image(instruction) {
                self.take_memory(accesses)?;
            }
        }
        let mut found = differences(
            &self.subject.registers(),
            self.reference.registers(),
            ignored,
        );
        // The log has no record for an instruction whose fetch faults.
        if found.iter().any(|difference| difference.name == "RIP")
            && self.subject.next_instruction().is_none()
        {
            let at = self.subject.registers();
            self.history
                .push(self.count, Event::FetchFault(at.selectors[1], at.rip));
            if let Err(stop) = self.subject.step() {
                return Ok(Some(self.stopped(stop, Progress::Stepped, before)));
            }
            self.clear_pushed_resume_flag(&at);
            found = differences(
                &self.subject.registers(),
                self.reference.registers(),
                ignored,
            );
        }
        if !found.is_empty() && self.reads_device(&before, instruction, accesses) {
            let theirs = self.reference.registers().clone();
            if theirs.rip == self.subject.registers().rip {
                self.inputs += 1;
                self.subject.change(|state| theirs.put_general(state));
                found = differences(&self.subject.registers(), &theirs, ignored);
            }
        }
        if found.is_empty() {
            found = self.memory_differences(&before, instruction, accesses)?;
            found.extend(self.device_differences());
        }
        if !found.is_empty() {
            return Ok(Some(self.parting(before, found, None)));
        }
        self.take_undefined_flags(ignored);
        Ok(None)
    }

    fn step_subject(&mut self, before: &Registers, remaining: Option<u64>) -> Result<(), VcpuStop> {
        let Some(remaining) = remaining else {
            return self.subject.step();
        };
        // An interrupt occurred in the middle: execute the repetitions that QEMU made.
        let count = before.general[1].wrapping_sub(remaining);
        self.subject.change(|state| state.gpr[1] = count);
        if count != 0 {
            self.subject.step()?;
        }
        let rip = before.rip;
        self.subject.change(|state| {
            state.gpr[1] = remaining;
            state.rip = rip;
        });
        Ok(())
    }

    /// Changes the frame that an exception has pushed to match QEMU's.
    fn clear_pushed_resume_flag(&mut self, before: &Registers) {
        let pushed = before.eflags | RESUME_FLAG;
        let top = self.subject.stack_top();
        let long = self.subject.registers().is_long_mode();
        for word in 0..if long { LONG_FRAME_WORDS } else { FRAME_WORDS } {
            let mut bytes = [0; 4];
            let Some(at) = self.subject.physical(top.wrapping_add(u64::from(4 * word))) else {
                return;
            };
            if self.subject.read(at, &mut bytes) && u32::from_le_bytes(bytes) == pushed {
                self.subject
                    .write(at, &(pushed & !RESUME_FLAG).to_le_bytes());
                return;
            }
        }
    }

    /// The number of repetitions that QEMU left until after the interrupt; `None` if it made all of
    /// them.
    fn interrupted_repetitions(
        &mut self,
        before: &Registers,
        instruction: &Instruction,
    ) -> Option<u64> {
        use iced_x86::Mnemonic::*;
        let next = before.rip.wrapping_add(instruction.len() as u64);
        if self.is_at(next) || self.delivered_interrupt(next).is_none() {
            return None;
        }
        let theirs = self.reference.registers();
        let remaining = theirs.general[1];
        let compares = matches!(
            instruction.mnemonic(),
            Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq
        );
        let zero = u64::from(theirs.eflags) & Flags::ZF.bits() != 0;
        let ended =
            compares && remaining != before.general[1] && zero == instruction.has_repne_prefix();
        (remaining != 0 && !ended).then_some(remaining)
    }

    /// Takes QEMU's result for an instruction that depends on the machine.
    fn take_input(&mut self, instruction: &Instruction, before: &Registers) -> io::Result<()> {
        self.inputs += 1;
        let theirs = self.reference.registers().clone();
        let ours = self.subject.registers();
        if may_be_refused(instruction) && ours.rip != theirs.rip {
            let name = format!("{:?}", instruction.mnemonic()).to_uppercase();
            let next = before.rip.wrapping_add(instruction.len() as u64);
            let we_refuse = ours.rip != next;
            let who = if we_refuse {
                "only Tollgate"
            } else {
                "only QEMU"
            };
            self.note(format!(
                "{name} with ECX={:08x}: {who} refuses it",
                before.general[1]
            ));
            if we_refuse {
                self.subject.change(|state| {
                    before.put_all(state);
                    theirs.put_general(state);
                });
            } else if let Err(stop) = self.subject.refuse(before) {
                return Err(io::Error::other(format!("{stop:?}")));
            }
            return Ok(());
        }
        if !is_input(instruction) {
            return Ok(());
        }
        if ours.rip == theirs.rip {
            self.subject.change(|state| theirs.put_general(state));
        }
        Ok(())
    }

    /// Sets flags that the manual leaves undefined to QEMU's values, so that they cause no
    /// difference later.
    fn take_undefined_flags(&mut self, ignored: u32) {
        let (ours, theirs) = (
            self.subject.registers().eflags,
            self.reference.registers().eflags,
        );
        let mask = Flags::ARITHMETIC.bits() as u32 & ignored;
        if (ours ^ theirs) & mask != 0 {
            let flags = Flags::from_bits_retain(u64::from((ours & !mask) | (theirs & mask)));
            self.subject.change(|state| state.set_flags(flags));
        }
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn stopped(&mut self, stop: VcpuStop, progress: Progress, before: Registers) -> Ending {
        match (&stop, progress) {
            (VcpuStop::Requested(request), Progress::Gone) => {
                Ending::BothEnded(format!("both ended (Tollgate: {request:?})"))
            }
            (VcpuStop::TripleFault(_), Progress::Gone) => {
                Ending::BothEnded("both ended in a triple fault".to_owned())
            }
            _ => self.parting(
                before,
                Vec::new(),
                Some(format!("Tollgate stopped: {stop:?}")),
            ),
        }
    }

    fn parting(
        &self,
        before: Registers,
        differences: Vec<Difference>,
        remark: Option<String>,
    ) -> Ending {
        Ending::Differs(Box::new(Parting {
            before,
            differences,
            ours: self.subject.registers(),
            theirs: self.reference.registers().clone(),
            remark,
        }))
    }
}
