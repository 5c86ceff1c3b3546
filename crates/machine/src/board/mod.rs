//! The board, which all devices share: memory, the chips that the processor or several devices
//! reach without the bus (interrupt controllers, DMA controllers, the x87's error logic), the wires
//! between them, and the guest's clocks.
//!
//! Everything here is below [the bus](crate::bus) and knows no device. The ports and pages at which
//! these chips answer are [devices](crate::devices::board_windows).

mod clock;
mod console;
pub mod dma;
pub mod fpu_error;
pub mod input;
mod interrupts;
pub mod io_apic;
pub mod irq_line;
pub mod local_apic;
mod outside;
pub mod pic;
mod state;

pub use clock::{GuestClock, begin_frequency_measurement};
pub use console::Console;
pub use interrupts::Interrupts;
pub use irq_line::IrqLine;
pub use outside::Outside;
pub use state::{SavedState, StateError};

use dma::DmaControllers;
use fpu_error::FpuError;
use outside::Nobody;
use serde::{Deserialize, Serialize};
use tollgate_memory::GuestMemory;
use tollgate_platform::StopRequest;

/// The board. Devices access it through a [`DeviceContext`](crate::bus::DeviceContext).
pub struct Board {
    /// Guest memory, whose writes pass the gate.
    pub memory: GuestMemory,
    /// The interrupt controllers.
    pub interrupts: Interrupts,
    /// The DMA controllers, which devices ask to transfer bytes.
    pub dma: DmaControllers,
    /// FERR#, line 13 and IGNNE#, which the processor drives and samples directly.
    pub fpu_error: FpuError,
    /// Whether address line 20 is enabled.
    pub a20: bool,
    /// Whether bit 7 of port 70h masks NMIs.
    pub nmi_masked: bool,
    /// Whether the real-time clock's alarm has gone off, which is also an event of ACPI's. It is
    /// reported when devices are next brought to the present time, and before a state is saved.
    pub alarm_rang: bool,
    /// The stop that the guest has requested.
    pub stop: Option<StopRequest>,
    /// Receives the output of the first serial port.
    pub serial_output: Console,
    /// The output of the second serial port.
    pub second_serial_output: Console,
    /// What the printer at the parallel port gets.
    pub printer_output: Console,
    /// Receives the output of the debug consoles.
    pub debug_output: Console,
    /// The connection to the other threads.
    pub outside: Box<dyn Outside>,
}

/// The part of a board that is saved.
#[derive(Serialize, Deserialize)]
struct State {
    interrupts: Interrupts,
    dma: DmaControllers,
    fpu_error: FpuError,
    a20: bool,
    nmi_masked: bool,
}

impl Board {
    /// The version of the saved state.
    pub const STATE_VERSION: u32 = 2;
    /// The board's name in saved states.
    pub const NAME: &str = "board";

    /// Makes a board in its state after power-up.
    pub fn new(memory: GuestMemory, serial_output: Console, debug_output: Console) -> Self {
        Self {
            memory,
            interrupts: Interrupts::new(),
            dma: DmaControllers::default(),
            fpu_error: FpuError::default(),
            a20: true,
            nmi_masked: false,
            alarm_rang: false,
            stop: None,
            serial_output,
            second_serial_output: Console::new(Box::new(std::io::sink())),
            printer_output: Console::new(Box::new(std::io::sink())),
            debug_output,
            outside: Box::new(Nobody),
        }
    }

    /// Resets the board, as a pulse of the reset line does. Memory keeps its contents.
    pub fn reset(&mut self) {
        self.interrupts = Interrupts::new();
        self.dma = DmaControllers::default();
        self.fpu_error = FpuError::default();
        self.a20 = true;
        self.nmi_masked = false;
        self.alarm_rang = false;
        self.stop = None;
    }

    /// Requests that the processor stop. An earlier request is kept.
    pub fn request_stop(&mut self, request: StopRequest) {
        self.stop.get_or_insert(request);
    }

    /// Drives the x87's error line.
    pub fn forward_fpu_error(&mut self) {
        self.interrupts
            .set_line(FpuError::IRQ, self.fpu_error.line());
    }

    /// Saves the wires and the controllers. Memory and output are saved elsewhere.
    pub fn save(&self) -> SavedState {
        SavedState::of(
            Self::STATE_VERSION,
            &State {
                interrupts: self.interrupts.clone(),
                dma: self.dma.clone(),
                fpu_error: self.fpu_error.clone(),
                a20: self.a20,
                nmi_masked: self.nmi_masked,
            },
        )
    }

    /// Restores saved wires and controllers.
    ///
    /// # Errors
    /// The state has another layout. Nothing has changed then.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let state: State = saved
            .read(Self::STATE_VERSION)
            .map_err(|error| error.of_part(Self::NAME))?;
        self.interrupts = state.interrupts;
        self.dma = state.dma;
        self.fpu_error = state.fpu_error;
        self.a20 = state.a20;
        self.nmi_masked = state.nmi_masked;
        self.alarm_rang = false;
        self.stop = None;
        Ok(())
    }
}
