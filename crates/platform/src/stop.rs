//! Why the processor stops: at the guest's request, or at one from outside.

use crate::mark::MarkName;
use std::fmt;

/// Why the machine wants the processor to stop running.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopRequest {
    /// The guest switched the power off.
    PowerOff,
    /// The guest asked for a reset of the whole machine.
    Reset(ResetCause),
    /// The guest asked for INIT of the processor alone: devices and memory stay.
    ProcessorReset(ResetCause),
    /// The guest's kernel reported a panic. It can continue afterwards.
    Panic(PanicReport),
    /// The guest sets a mark in the statistics. It continues afterwards.
    Mark(MarkName),
    /// isa-debug-exit: the byte that the guest wrote.
    DebugExit(u8),
    /// A user or program outside requested the end.
    Quit,
    /// Another thread requests something (a pause, a status); the guest continues afterwards.
    Attention,
}

impl fmt::Display for StopRequest {
    /// Names what is requested, as a noun.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => formatter.write_str("power-off"),
            Self::Reset(cause) => write!(formatter, "a reset, by {cause}"),
            Self::ProcessorReset(cause) => {
                write!(formatter, "a reset of the processor, by {cause}")
            }
            Self::Panic(_) => formatter.write_str("the report of a panic"),
            Self::Mark(name) => write!(formatter, "the mark {name}"),
            Self::DebugExit(value) => write!(formatter, "the end with {value}, at port F4h"),
            Self::Quit => formatter.write_str("the end"),
            Self::Attention => formatter.write_str("attention"),
        }
    }
}

/// What caused the reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetCause {
    /// The chip set's reset register, port CF9h, which ACPI's reset uses too.
    ResetRegister,
    /// The keyboard controller's command FEh, port 64h.
    KeyboardController,
    /// System control port A, port 92h.
    SystemControlPort,
    /// A message from the local APIC: INIT to the processor itself.
    InitMessage,
    /// The processor shut down after a triple fault.
    TripleFault,
    /// The watchdog, which the guest did not reload in time.
    Watchdog,
}

impl ResetCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::ResetRegister,
        Self::KeyboardController,
        Self::SystemControlPort,
        Self::InitMessage,
        Self::TripleFault,
        Self::Watchdog,
    ];

    /// The cause's name in machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ResetRegister => "reset-register",
            Self::KeyboardController => "keyboard-controller",
            Self::SystemControlPort => "system-control-port",
            Self::InitMessage => "init-message",
            Self::TripleFault => "triple-fault",
            Self::Watchdog => "watchdog",
        }
    }
}

impl fmt::Display for ResetCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ResetRegister => "the reset register (port CF9h)",
            Self::KeyboardController => "the keyboard controller (port 64h)",
            Self::SystemControlPort => "system control port A (port 92h)",
            Self::InitMessage => "an INIT message of its local APIC",
            Self::TripleFault => "a triple fault",
            Self::Watchdog => "the watchdog",
        })
    }
}

/// What the guest's kernel reported about its panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PanicReport {
    /// The kernel has given up.
    Fatal,
    /// Another kernel takes over and writes a dump.
    HandledByGuest,
}
