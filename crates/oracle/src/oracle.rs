//! Runs test states on both processors.

use crate::case::{Case, Fill, Input, Outcome};
use crate::compare::{Difference, memories, outcomes};
use crate::encode::{Encoded, decode};
use crate::exclusions::harms_host;
use crate::guest::{Continuation, Guest};
use crate::layout::{Access, CODE_END, CODE_START, PAGE, PAGE_ACCESS, WINDOW_BYTES};
use crate::native::Native;
use crate::tolerance::either_is_right;
use std::io;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_test_support::Random;

/// The expected result of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expectation {
    /// The result of the host's processor.
    Native,
    /// #UD before anything happens: the guest is not offered the instruction, even if the host has
    /// it.
    Undefined,
}

/// The result for one state.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The outcome on the host's processor.
    pub expected: Outcome,
    /// The outcome in the guest.
    pub got: Outcome,
    /// The differences; empty if both agree.
    pub differences: Vec<Difference>,
    /// Whether no comparison was possible: the host's processor had different outcomes in two runs,
    /// or did not end.
    pub undecided: bool,
}

/// The host's processor and the guest, with the same window.
pub struct Oracle {
    native: Native,
    guest: Guest,
    background: Box<[u8; WINDOW_BYTES]>,
    fill: Option<Fill>,
    loaded: Option<(u16, usize)>,
}

const INT3: u8 = 0xcc;

fn background(fill: Fill) -> Box<[u8; WINDOW_BYTES]> {
    let mut bytes = Box::new([0; WINDOW_BYTES]);
    if fill == Fill::Random {
        let mut random = Random::new(0x0f111);
        for byte in bytes.iter_mut() {
            *byte = random.byte();
        }
    }
    bytes[usize::from(CODE_START)..usize::from(CODE_END)].fill(INT3);
    bytes
}

impl Oracle {
    /// Sets both up; waits while another thread of the process uses the native side.
    ///
    /// # Errors
    ///
    /// The host refused something: memory, descriptors, signals.
    pub fn new(map: &'static RegisterMap) -> io::Result<Self> {
        Ok(Self {
            guest: Guest::new(map)?,
            native: Native::new()?,
            background: background(Fill::Random),
            fill: None,
            loaded: None,
        })
    }

    /// Writes the case's code to its address, with INT3 around it.
    pub fn load(&mut self, case: &Case) {
        if let Some((at, length)) = self.loaded {
            let blank = vec![INT3; length];
            self.native.memory_mut()[usize::from(at)..][..length].copy_from_slice(&blank);
            self.guest.write_memory(at, &blank);
        }
        let length = case.code.len();
        self.native.memory_mut()[usize::from(case.at)..][..length].copy_from_slice(&case.code);
        self.guest.write_memory(case.at, &case.code);
        self.loaded = Some((case.at, length));
    }

    /// Restores the initial content wherever a run has written.
    fn reset_memory(&mut self, fill: Fill) {
        let everything = self.fill != Some(fill);
        if everything {
            self.background = background(fill);
            self.fill = Some(fill);
        }
        for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
            let range = page * PAGE..(page + 1) * PAGE;
            let changes = match access {
                Access::Write => true,
                // Pokes can change read-only pages.
                Access::Read => true,
                Access::None | Access::Code => everything && access == Access::None,
            };
            if !changes {
                continue;
            }
            let wanted = &self.background[range.clone()];
            if everything || self.native.memory()[range.clone()] != *wanted {
                self.native.memory_mut()[range.clone()].copy_from_slice(wanted);
            }
            if everything || self.guest.memory()[range.clone()] != *wanted {
                self.guest.write_memory(range.start as u16, wanted);
            }
        }
        if everything {
            // Restore the INT3s of the code pages where code was loaded.
            let code = usize::from(CODE_START)..usize::from(CODE_END);
            for at in code {
                let loaded = self.loaded.is_some_and(|(start, length)| {
                    (usize::from(start)..usize::from(start) + length).contains(&at)
                });
                if !loaded {
                    self.native.memory_mut()[at] = INT3;
                    self.guest.write_memory(at as u16, &[INT3]);
                }
            }
        }
    }

    fn apply_pokes(&mut self, input: &Input) {
        for (offset, bytes) in &input.pokes {
            self.native.memory_mut()[usize::from(*offset)..][..bytes.len()].copy_from_slice(bytes);
            self.guest.write_memory(*offset, bytes);
        }
    }

    fn run_native(&mut self, case: &Case, input: &Input) -> Outcome {
        let outcome = self.native.run(case, input);
        if outcome.vector != Outcome::ENDLESS {
            return outcome;
        }
        // The watchdog may have fired by chance.
        self.reset_native(input);
        self.native.run(case, input)
    }

    fn reset_native(&mut self, input: &Input) {
        for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
            if access == Access::Write {
                let range = page * PAGE..(page + 1) * PAGE;
                self.native.memory_mut()[range.clone()].copy_from_slice(&self.background[range]);
            }
        }
        for (offset, bytes) in &input.pokes {
            self.native.memory_mut()[usize::from(*offset)..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Runs a state on both processors.
    pub fn run(
        &mut self,
        case: &Case,
        code: &[Encoded],
        input: &Input,
        expectation: Expectation,
    ) -> Verdict {
        if code
            .iter()
            .any(|one| harms_host(&one.instruction, &input.gpr))
        {
            return Verdict {
                expected: Outcome::without_registers(Outcome::GAVE_UP),
                got: Outcome::without_registers(Outcome::GAVE_UP),
                differences: Vec::new(),
                undecided: true,
            };
        }
        self.reset_memory(input.fill);
        self.apply_pokes(input);
        let mut got = self.guest.run(case, input);
        self.guest.read_memory();
        if got.vector == Outcome::ENDLESS {
            // The guest's time limit is wall-clock time: the host may have been busy.
            self.reset_memory(input.fill);
            self.apply_pokes(input);
            got = self.guest.run(case, input);
            self.guest.read_memory();
        }
        let expected = match expectation {
            Expectation::Undefined => self.undefined(case, input),
            Expectation::Native => self.run_native(case, input),
        };
        let mut differences = outcomes(code, input, &expected, &got);
        let ended = got.vector < Outcome::GAVE_UP && expected.vector < Outcome::GAVE_UP;
        if ended && !either_is_right(code, &expected, &got) {
            differences.extend(memories(
                case,
                code,
                input,
                &expected,
                (self.native.memory(), self.guest.memory()),
            ));
        }
        let mut undecided = expected.vector == Outcome::ENDLESS;
        if !differences.is_empty() && expectation == Expectation::Native && !undecided {
            let first = *self.native.memory();
            self.reset_native(input);
            let again = self.native.run(case, input);
            undecided = again != expected || *self.native.memory() != first;
        }
        Verdict {
            expected,
            got,
            differences,
            undecided,
        }
    }

    fn undefined(&self, case: &Case, input: &Input) -> Outcome {
        let mut outcome = Outcome::without_registers(6);
        outcome.rip = crate::encode::rip_of(case.world, case.at);
        outcome.gpr = input.gpr;
        // The frame of a fault has RF set.
        outcome.flags = (input.flags | 0x1_0202) & 0x3f_7fd7;
        outcome.selectors = case.world.selectors();
        outcome.bases = case.world.thread_bases();
        outcome.vector_state = input.vector.clone();
        crate::case::normalize(&mut outcome.vector_state, case.world);
        outcome
    }

    /// Runs 16- and 32-bit code in compatibility mode, see [`Guest::use_compatibility_mode`].
    pub fn use_compatibility_mode(&mut self) {
        self.guest.use_compatibility_mode();
    }

    /// Decides where the guest runs from now on.
    pub fn continue_in(&mut self, continuation: Continuation) {
        self.guest.continue_in(continuation);
    }

    /// The reason that the monitor gave when it last failed.
    pub fn complaint(&self) -> &str {
        self.guest.complaint()
    }
}

/// The instructions of a case, up to the first one that does not decode.
pub fn instructions(case: &Case) -> Vec<Encoded> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < case.code.len() {
        let mut bytes = case.code[at..].to_vec();
        bytes.extend([INT3; 15]);
        match decode(case.world, case.at + at as u16, &bytes) {
            Some(one) => {
                at += one.bytes.len();
                found.push(one);
            }
            None => break,
        }
    }
    found
}
