//! The last executed instructions, for the report of a difference.

use iced_x86::{Formatter, Instruction, IntelFormatter};
use std::collections::VecDeque;

/// Number of instructions in a report.
const KEPT: usize = 20;

/// What happened at an instruction boundary.
#[derive(Clone, Copy)]
pub enum Event {
    /// An instruction, executed in the segment with this selector.
    Instruction(u16, Instruction),
    /// The fetch at CS:EIP faulted.
    FetchFault(u16, u64),
    /// QEMU delivered this interrupt.
    Interrupt(u8),
}

/// The last events, oldest first.
#[derive(Default)]
pub struct History {
    events: VecDeque<(u64, Event)>,
}

impl History {
    /// Adds the event of step `number`.
    pub fn push(&mut self, number: u64, event: Event) {
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back((number, event));
    }

    /// One line for each event.
    pub fn lines(&self) -> Vec<String> {
        self.events
            .iter()
            .map(|(number, event)| {
                let text = match event {
                    Event::Instruction(selector, instruction) => {
                        format!(
                            "{selector:04x}:{:08x}  {}",
                            instruction.ip(),
                            disassemble(instruction)
                        )
                    }
                    Event::FetchFault(selector, eip) => {
                        format!("{selector:04x}:{eip:08x}  (fetch faults)")
                    }
                    Event::Interrupt(vector) => format!("               (interrupt {vector:#04x})"),
                };
                format!("{number:>10}  {text}")
            })
            .collect()
    }
}

/// The instruction in assembly language.
pub fn disassemble(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_events_are_kept() {
        let mut history = History::default();
        for number in 0..30 {
            history.push(number, Event::Interrupt(number as u8));
        }
        let lines = history.lines();
        assert_eq!(lines.len(), KEPT);
        assert!(lines[0].contains("0x0a"), "{lines:?}");
    }
}
