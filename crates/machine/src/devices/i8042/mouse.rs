//! The mouse on the controller: a PS/2 mouse with three buttons, and with a wheel once the host has
//! enabled it as for Microsoft's IntelliMouse.
//!
//! (IBM PS/2 Hardware Interface Technical Reference, "Auxiliary Device"; Microsoft, "Intellimouse
//! Protocol".)
//!
//! ```text
//!   outside                     the mouse                              the host
//!   moves, buttons  --event-->  counters  --report, at most `rate`-->  three bytes, or four
//!                                         a second                     with the wheel
//! ```
//!
//! The counters are in counts: a move from outside has the same number of counts at any resolution,
//! which is only remembered. Counts that do not fit into one report are sent with the next, so
//! counters never overflow. Like the keyboard, the mouse accepts and offers bytes; the controller
//! decides how long a byte takes.

use crate::board::input::{Buttons, MouseEvent};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tollgate_platform::GuestTime;

/// Commands from the host.
mod command {
    pub(super) const SCALING_1_TO_1: u8 = 0xE6;
    pub(super) const SCALING_2_TO_1: u8 = 0xE7;
    pub(super) const SET_RESOLUTION: u8 = 0xE8;
    pub(super) const STATUS: u8 = 0xE9;
    pub(super) const STREAM: u8 = 0xEA;
    pub(super) const READ: u8 = 0xEB;
    pub(super) const END_WRAP: u8 = 0xEC;
    pub(super) const WRAP: u8 = 0xEE;
    pub(super) const REMOTE: u8 = 0xF0;
    pub(super) const IDENTIFY: u8 = 0xF2;
    pub(super) const SET_RATE: u8 = 0xF3;
    pub(super) const ENABLE: u8 = 0xF4;
    pub(super) const DISABLE: u8 = 0xF5;
    pub(super) const SET_DEFAULTS: u8 = 0xF6;
    pub(super) const RESEND: u8 = 0xFE;
    pub(super) const RESET: u8 = 0xFF;
}

/// Answers to the host.
mod answer {
    pub(super) const ACKNOWLEDGE: u8 = 0xFA;
    pub(super) const SELF_TEST_PASSED: u8 = 0xAA;
    /// The answer to an invalid byte: send it again.
    pub(super) const RESEND: u8 = 0xFE;
    /// The answer to a second invalid byte in a row.
    pub(super) const ERROR: u8 = 0xFC;
    pub(super) const PLAIN_MOUSE: u8 = 0;
    pub(super) const WHEEL_MOUSE: u8 = 3;
}

/// The supported reports per second.
const RATES: [u8; 7] = [10, 20, 40, 60, 80, 100, 200];
const DEFAULT_RATE: u8 = 100;
/// The number of resolutions. Their numbers stand for 1, 2, 4 and 8 counts per millimetre.
const RESOLUTIONS: u8 = 4;
const DEFAULT_RESOLUTION: u8 = 2;
/// The sequence of rates that enables the wheel when they are set one after the other.
const WHEEL_KNOCK: [u8; 3] = [200, 100, 80];
/// The maximum count in a report. A counter of nine bits could hold one more, but only downwards.
const MOST_COUNTS: i32 = 255;

/// The command whose parameter comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Awaiting {
    Resolution,
    Rate,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mouse {
    /// Answers to commands.
    answers: VecDeque<u8>,
    /// The unsent bytes of a report.
    report: VecDeque<u8>,
    /// The last answer or report, in case the host requests it again.
    last_sent: Vec<u8>,
    awaiting: Option<Awaiting>,
    /// Whether the last byte from the host was invalid.
    has_refused: bool,
    /// Remote mode: a report is sent when the host requests it, and not when something has
    /// happened.
    is_remote: bool,
    /// Wrap mode: bytes from the host are sent back to it.
    wraps: bool,
    /// Whether reports are enabled in stream mode.
    is_enabled: bool,
    /// Whether reports in stream mode are scaled 2:1.
    is_scaled: bool,
    resolution: u8,
    rate: u8,
    /// The last three rates that were set, oldest first.
    knock: [u8; 3],
    has_wheel: bool,
    /// The counts that were not reported yet.
    right: i32,
    down: i32,
    wheel: i32,
    buttons: Buttons,
    reported_buttons: Buttons,
    /// The earliest time of the next report.
    report_at: GuestTime,
}

impl Mouse {
    /// Makes a mouse that has passed its self-test.
    pub(super) const fn new() -> Self {
        Self {
            answers: VecDeque::new(),
            report: VecDeque::new(),
            last_sent: Vec::new(),
            awaiting: None,
            has_refused: false,
            is_remote: false,
            wraps: false,
            is_enabled: false,
            is_scaled: false,
            resolution: DEFAULT_RESOLUTION,
            rate: DEFAULT_RATE,
            knock: [0; 3],
            has_wheel: false,
            right: 0,
            down: 0,
            wheel: 0,
            buttons: Buttons::empty(),
            reported_buttons: Buttons::empty(),
            report_at: GuestTime(0),
        }
    }

    pub(super) fn has_byte(&self) -> bool {
        !self.answers.is_empty() || !self.report.is_empty()
    }

    /// Returns the next byte for the host.
    pub(super) fn next_byte(&mut self) -> Option<u8> {
        let answer = self.answers.pop_front();
        answer.or_else(|| self.report.pop_front())
    }

    /// Whether an event would get a report of its own, or be discarded. If neither, the event
    /// should wait so that no click is lost.
    pub(super) fn has_room(&self) -> bool {
        !self.reports_by_itself() || (self.report.is_empty() && !self.has_news())
    }

    /// Handles a byte from the host: a command or a parameter. The unsent rest of the last answer
    /// or report is dropped.
    pub(super) fn receive(&mut self, byte: u8) {
        self.answers.clear();
        self.report.clear();
        if self.wraps && !matches!(byte, command::END_WRAP | command::RESET) {
            return self.answer(&[byte]);
        }
        let awaiting = self.awaiting.take();
        // A command in the place of a parameter is executed as a command.
        let is_valid = match awaiting.filter(|_| byte < command::SCALING_1_TO_1) {
            Some(awaiting) => self.receive_parameter(awaiting, byte),
            None => self.obey(byte),
        };
        if is_valid {
            self.has_refused = false;
        } else {
            // A second refusal in a row means that repeating the byte is useless.
            let refusal = [answer::RESEND, answer::ERROR][usize::from(self.has_refused)];
            self.has_refused = !self.has_refused;
            self.answer(&[refusal]);
        }
    }

    /// Executes a command. Returns false if there is no such command.
    fn obey(&mut self, byte: u8) -> bool {
        match byte {
            command::SCALING_1_TO_1 => self.is_scaled = false,
            command::SCALING_2_TO_1 => self.is_scaled = true,
            command::SET_RESOLUTION => self.awaiting = Some(Awaiting::Resolution),
            command::SET_RATE => self.awaiting = Some(Awaiting::Rate),
            command::STATUS => {
                let [flags, resolution, rate] = self.status();
                self.answer(&[answer::ACKNOWLEDGE, flags, resolution, rate]);
                return true;
            }
            command::READ => {
                // Scaling applies only to reports that the mouse sends by itself.
                let report = self.take_report(false);
                self.answer(&[&[answer::ACKNOWLEDGE], &*report].concat());
                return true;
            }
            command::IDENTIFY => {
                let identity = match self.has_wheel {
                    true => answer::WHEEL_MOUSE,
                    false => answer::PLAIN_MOUSE,
                };
                self.answer(&[answer::ACKNOWLEDGE, identity]);
                return true;
            }
            command::STREAM => {
                self.clear_counters();
                self.is_remote = false;
            }
            command::REMOTE => {
                self.clear_counters();
                self.is_remote = true;
            }
            command::WRAP => {
                self.clear_counters();
                self.wraps = true;
            }
            command::END_WRAP => {
                self.clear_counters();
                self.wraps = false;
            }
            command::ENABLE => {
                self.clear_counters();
                self.is_enabled = true;
            }
            command::DISABLE => {
                self.clear_counters();
                self.is_enabled = false;
            }
            command::SET_DEFAULTS => self.set_defaults(),
            command::RESEND => {
                self.answers.extend(&self.last_sent);
                return true;
            }
            command::RESET => {
                *self = Self {
                    buttons: self.buttons,
                    ..Self::new()
                };
                let passed = [answer::SELF_TEST_PASSED, answer::PLAIN_MOUSE];
                self.answer(&[&[answer::ACKNOWLEDGE], &passed[..]].concat());
                return true;
            }
            _ => return false,
        }
        self.answer(&[answer::ACKNOWLEDGE]);
        true
    }

    /// Handles a command's parameter. Returns false if it is invalid.
    fn receive_parameter(&mut self, awaiting: Awaiting, byte: u8) -> bool {
        match awaiting {
            Awaiting::Resolution if byte < RESOLUTIONS => self.resolution = byte,
            Awaiting::Rate if RATES.contains(&byte) => {
                self.rate = byte;
                self.knock = [self.knock[1], self.knock[2], byte];
                self.has_wheel |= self.knock == WHEEL_KNOCK;
            }
            _ => {
                // The parameter may be sent again.
                self.awaiting = Some(awaiting);
                return false;
            }
        }
        self.answer(&[answer::ACKNOWLEDGE]);
        true
    }

    fn answer(&mut self, bytes: &[u8]) {
        self.answers.extend(bytes);
        self.last_sent = bytes.to_vec();
    }

    /// Returns the answer to E9h: modes and buttons, the resolution, the rate.
    fn status(&self) -> [u8; 3] {
        let flag = |is_set: bool, bit: u8| u8::from(is_set) << bit;
        let button = |button, bit| flag(self.buttons.contains(button), bit);
        let flags = flag(self.is_remote, 6)
            | flag(self.is_enabled, 5)
            | flag(self.is_scaled, 4)
            | button(Buttons::LEFT, 2)
            | button(Buttons::MIDDLE, 1)
            | button(Buttons::RIGHT, 0);
        [flags, self.resolution, self.rate]
    }

    fn set_defaults(&mut self) {
        self.clear_counters();
        self.is_remote = false;
        self.is_enabled = false;
        self.is_scaled = false;
        self.resolution = DEFAULT_RESOLUTION;
        self.rate = DEFAULT_RATE;
    }

    fn clear_counters(&mut self) {
        (self.right, self.down, self.wheel) = (0, 0, 0);
        self.reported_buttons = self.buttons;
    }

    /// Whether reports are sent without a request.
    fn reports_by_itself(&self) -> bool {
        self.is_enabled && !self.is_remote && !self.wraps
    }

    /// Whether there is something to report.
    fn has_news(&self) -> bool {
        (self.right, self.down, self.wheel) != (0, 0, 0) || self.buttons != self.reported_buttons
    }

    /// Adds the moves of an event to the counters, and takes over its buttons.
    pub(super) fn event(&mut self, event: MouseEvent) {
        self.right = self.right.saturating_add(event.right);
        self.down = self.down.saturating_add(event.down);
        if self.has_wheel {
            self.wheel = self.wheel.saturating_add(event.wheel);
        }
        self.buttons = event.buttons;
    }

    /// Returns when the next report is sent.
    pub(super) fn next_report(&self) -> Option<GuestTime> {
        let is_due = self.reports_by_itself() && !self.has_byte() && self.has_news();
        is_due.then_some(self.report_at)
    }

    /// Makes a report if one is due.
    pub(super) fn advance(&mut self, now: GuestTime) {
        if self.next_report().is_some_and(|at| at <= now) {
            let report = self.take_report(self.is_scaled);
            self.report.extend(&report);
            self.last_sent = report;
            self.report_at = now.after(1_000_000_000 / u64::from(self.rate));
        }
    }

    /// Makes a report of everything since the last one, and marks it as reported.
    fn take_report(&mut self, is_scaled: bool) -> Vec<u8> {
        const ALWAYS: u8 = 1 << 3;
        const LEFT: u8 = 1 << 4;
        const DOWN: u8 = 1 << 5;
        // Twice the count must fit too.
        let most = if is_scaled {
            MOST_COUNTS / 2
        } else {
            MOST_COUNTS
        };
        let (right, down) = (take(&mut self.right, most), take(&mut self.down, most));
        let (right, up) = match is_scaled {
            true => (scaled(right), scaled(-down)),
            false => (right, -down),
        };
        self.reported_buttons = self.buttons;
        let mut flags = ALWAYS | self.buttons.bits();
        if right < 0 {
            flags |= LEFT;
        }
        if up < 0 {
            flags |= DOWN;
        }
        let mut report = vec![flags, right as u8, up as u8];
        if self.has_wheel {
            // Four bits with a sign, extended to a byte.
            report.push(take(&mut self.wheel, 7) as u8);
        }
        report
    }
}

/// Takes at most `most` counts from a counter, in either direction.
fn take(counter: &mut i32, most: i32) -> i32 {
    let taken = (*counter).clamp(-most, most);
    *counter -= taken;
    taken
}

/// Scales a counter 2:1.
fn scaled(counts: i32) -> i32 {
    let scaled = match counts.abs() {
        few @ 0..=1 => few,
        2 => 1,
        3 => 3,
        4 => 6,
        5 => 9,
        many => 2 * many,
    };
    scaled * counts.signum()
}
