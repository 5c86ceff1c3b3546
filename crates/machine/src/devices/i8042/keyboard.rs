//! The keyboard on the controller: a 101-key PS/2 keyboard.
//!
//! It accepts a byte and offers bytes; the controller decides how long a byte takes. LEDs are
//! remembered but not shown. In set 3 every key repeats and sends break codes: the commands that
//! choose otherwise (F7h to FDh) are acknowledged without effect.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tollgate_platform::GuestTime;

use super::scancodes::ScancodeSet;
use crate::board::input::Key;

/// The number of bytes of scancodes that the keyboard buffers.
const BUFFER_SIZE: usize = 16;

/// The maximum number of bytes that one key sends: Pause in set 2.
const KEY_BYTES: usize = 8;

/// Commands from the host.
mod command {
    pub(super) const SET_LEDS: u8 = 0xED;
    pub(super) const ECHO: u8 = 0xEE;
    pub(super) const UNDEFINED_EF: u8 = 0xEF;
    pub(super) const SCANCODE_SET: u8 = 0xF0;
    pub(super) const UNDEFINED_F1: u8 = 0xF1;
    pub(super) const IDENTIFY: u8 = 0xF2;
    pub(super) const SET_TYPEMATIC: u8 = 0xF3;
    pub(super) const ENABLE: u8 = 0xF4;
    pub(super) const DISABLE: u8 = 0xF5;
    pub(super) const SET_DEFAULTS: u8 = 0xF6;
    pub(super) const ALL_KEYS_FIRST: u8 = 0xF7;
    pub(super) const ALL_KEYS_LAST: u8 = 0xFA;
    pub(super) const ONE_KEY_FIRST: u8 = 0xFB;
    pub(super) const ONE_KEY_LAST: u8 = 0xFD;
    pub(super) const RESEND: u8 = 0xFE;
    pub(super) const RESET: u8 = 0xFF;
}

/// Answers to the host.
mod answer {
    pub(super) const ACKNOWLEDGE: u8 = 0xFA;
    pub(super) const RESEND: u8 = 0xFE;
    pub(super) const ECHO: u8 = 0xEE;
    pub(super) const SELF_TEST_PASSED: u8 = 0xAA;
    pub(super) const IDENTITY: [u8; 2] = [0xAB, 0x83];
    pub(super) const OVERRUN_SET_1: u8 = 0xFF;
    pub(super) const OVERRUN: u8 = 0x00;
}

/// The command whose parameter comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Awaiting {
    Leds,
    ScancodeSet,
    Typematic,
    /// A command for keys of set 3, with any number of them.
    Keys,
}

/// The key that is held and repeats.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Held {
    key: Key,
    repeats_at: GuestTime,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Keyboard {
    /// Answers to commands, which have priority over scancodes.
    answers: VecDeque<u8>,
    scancodes: VecDeque<u8>,
    scancode_set: ScancodeSet,
    scanning: bool,
    leds: u8,
    typematic: u8,
    awaiting: Option<Awaiting>,
    held: Option<Held>,
    last_sent: u8,
}

impl Keyboard {
    /// A delay of half a second, and 10.9 characters per second.
    const DEFAULT_TYPEMATIC: u8 = 0x2B;

    /// Makes a keyboard that has passed its self-test and been enabled by firmware.
    pub(super) const fn new() -> Self {
        Self {
            answers: VecDeque::new(),
            scancodes: VecDeque::new(),
            scancode_set: ScancodeSet::Two,
            scanning: true,
            leds: 0,
            typematic: Self::DEFAULT_TYPEMATIC,
            awaiting: None,
            held: None,
            last_sent: 0,
        }
    }

    pub(super) const fn leds(&self) -> u8 {
        self.leds
    }

    /// Whether the bytes of any one key fit. A disabled keyboard accepts no keys, so typed keys
    /// wait until the guest reads them.
    pub(super) fn has_room(&self) -> bool {
        self.scanning && self.scancodes.len() + KEY_BYTES < BUFFER_SIZE
    }

    /// Returns how many bytes of scancodes the controller has not fetched.
    pub(super) fn waiting_scancodes(&self) -> usize {
        self.scancodes.len()
    }

    pub(super) fn has_byte(&self) -> bool {
        !self.answers.is_empty() || !self.scancodes.is_empty()
    }

    /// Returns the next byte for the host.
    pub(super) fn next_byte(&mut self) -> Option<u8> {
        let byte = self
            .answers
            .pop_front()
            .or_else(|| self.scancodes.pop_front())?;
        self.last_sent = byte;
        Some(byte)
    }

    /// Handles a byte from the host: a command or a parameter.
    pub(super) fn receive(&mut self, byte: u8) {
        // The unsent rest of the last answer is dropped.
        let last_sent = self.last_sent;
        self.answers.clear();
        // A command in the place of a parameter is executed as a command.
        if byte < command::SET_LEDS
            && let Some(awaiting) = self.awaiting.take()
        {
            self.receive_parameter(awaiting, byte);
            return;
        }
        self.awaiting = None;
        if byte == command::RESEND {
            self.answers.push_back(last_sent);
            return;
        }
        if byte == command::ECHO {
            self.answers.push_back(answer::ECHO);
            return;
        }
        if matches!(
            byte,
            ..command::SET_LEDS | command::UNDEFINED_EF | command::UNDEFINED_F1
        ) {
            self.answers.push_back(answer::RESEND);
            return;
        }
        self.answers.push_back(answer::ACKNOWLEDGE);
        match byte {
            command::SET_LEDS => self.awaiting = Some(Awaiting::Leds),
            command::SCANCODE_SET => self.awaiting = Some(Awaiting::ScancodeSet),
            command::SET_TYPEMATIC => self.awaiting = Some(Awaiting::Typematic),
            command::IDENTIFY => self.answers.extend(answer::IDENTITY),
            command::ENABLE => {
                self.clear_keys();
                self.scanning = true;
            }
            command::DISABLE => {
                self.set_defaults();
                self.scanning = false;
            }
            command::SET_DEFAULTS => self.set_defaults(),
            command::ALL_KEYS_FIRST..=command::ALL_KEYS_LAST => {}
            command::ONE_KEY_FIRST..=command::ONE_KEY_LAST => self.awaiting = Some(Awaiting::Keys),
            command::RESET => {
                self.set_defaults();
                self.scanning = true;
                self.leds = 0;
                self.answers.push_back(answer::SELF_TEST_PASSED);
            }
            _ => {}
        }
    }

    fn receive_parameter(&mut self, awaiting: Awaiting, byte: u8) {
        match awaiting {
            Awaiting::Leds => self.leds = byte & 7,
            Awaiting::Typematic => self.typematic = byte & 0x7F,
            Awaiting::Keys => self.awaiting = Some(Awaiting::Keys),
            Awaiting::ScancodeSet => {
                self.scancode_set = match byte {
                    0 => {
                        let number = self.scancode_set.number();
                        self.answers.extend([answer::ACKNOWLEDGE, number]);
                        return;
                    }
                    1 => ScancodeSet::One,
                    2 => ScancodeSet::Two,
                    3 => ScancodeSet::Three,
                    _ => {
                        self.answers.push_back(answer::RESEND);
                        return;
                    }
                };
                self.clear_keys();
            }
        }
        self.answers.push_back(answer::ACKNOWLEDGE);
    }

    fn set_defaults(&mut self) {
        self.clear_keys();
        self.scancode_set = ScancodeSet::Two;
        self.typematic = Self::DEFAULT_TYPEMATIC;
    }

    fn clear_keys(&mut self) {
        self.scancodes.clear();
        self.held = None;
    }

    /// Presses or releases a key.
    pub(super) fn key(&mut self, key: Key, down: bool, now: GuestTime) {
        if !self.scanning {
            return;
        }
        self.send_key(key, down);
        if down && key != Key::PAUSE {
            self.held = Some(Held {
                key,
                repeats_at: now.after(self.repeat_delay()),
            });
        } else if self.held.is_some_and(|held| held.key == key) {
            self.held = None;
        }
    }

    fn send_key(&mut self, key: Key, down: bool) {
        let sequence = self.scancode_set.sequence(key, down);
        // The last place is reserved for the mark that scancodes were lost.
        if self.scancodes.len() + sequence.len() < BUFFER_SIZE {
            self.scancodes.extend(sequence);
            return;
        }
        let overrun = match self.scancode_set {
            ScancodeSet::One => answer::OVERRUN_SET_1,
            ScancodeSet::Two | ScancodeSet::Three => answer::OVERRUN,
        };
        if self.scancodes.back() != Some(&overrun) && self.scancodes.len() < BUFFER_SIZE {
            self.scancodes.push_back(overrun);
        }
    }

    /// Returns the nanoseconds until a held key repeats for the first time, from bits 6-5.
    fn repeat_delay(&self) -> u64 {
        (u64::from(self.typematic >> 5 & 3) + 1) * 250_000_000
    }

    /// Returns the nanoseconds between two repetitions: (8 + bits 2-0) * 2^(bits 4-3) / 240 s.
    fn repeat_period(&self) -> u64 {
        let units = (8 + u64::from(self.typematic & 7)) << (self.typematic >> 3 & 3);
        units * 1_000_000_000 / 240
    }

    /// Returns when the held key repeats.
    pub(super) fn next_repeat(&self) -> Option<GuestTime> {
        self.held.map(|held| held.repeats_at)
    }

    /// Repeats the held key once if its time has come, however late this call is. Nothing is
    /// repeated while the guest has not read earlier bytes, or without `may_repeat`: the key's
    /// release may be waiting outside for room.
    pub(super) fn advance(&mut self, now: GuestTime, may_repeat: bool) {
        let period = self.repeat_period();
        let has_room = may_repeat && self.has_room();
        if let Some(held) = &mut self.held
            && held.repeats_at <= now
        {
            held.repeats_at = now.after(period);
            let key = held.key;
            if has_room {
                self.send_key(key, true);
            }
        }
    }
}
