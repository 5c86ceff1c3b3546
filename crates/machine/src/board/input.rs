//! Keys and moves of the mouse, as they arrive from outside the machine.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// A key, identified by its make code in set 1 and by whether E0h precedes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Key {
    pub(crate) code: u8,
    pub(crate) extended: bool,
}

impl Key {
    /// Escape.
    pub const ESCAPE: Self = Self::new(0x01);
    /// Enter on the main block.
    pub const ENTER: Self = Self::new(0x1C);
    /// Left Control.
    pub const LEFT_CONTROL: Self = Self::new(0x1D);
    /// Left Shift.
    pub const LEFT_SHIFT: Self = Self::new(0x2A);
    /// Left Alt.
    pub const LEFT_ALT: Self = Self::new(0x38);
    /// The letter A.
    pub const A: Self = Self::new(0x1E);
    /// Delete in the middle block.
    pub const DELETE: Self = Self::extended(0x53);
    /// Print Screen.
    pub const PRINT_SCREEN: Self = Self::extended(0x37);
    /// Pause, which sends its make and break codes together, and nothing when it is released.
    pub const PAUSE: Self = Self::extended(0x45);

    /// Makes the key with set 1 make code `code`; bit 7 is ignored.
    pub const fn new(code: u8) -> Self {
        Self {
            code: code & 0x7F,
            extended: false,
        }
    }

    /// Makes the key with set 1 make code E0h `code`; bit 7 is ignored.
    pub const fn extended(code: u8) -> Self {
        Self {
            code: code & 0x7F,
            extended: true,
        }
    }
}

bitflags! {
    /// The buttons that are down, as in the first byte of a report.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Buttons: u8 {
        /// The left button.
        const LEFT = 1 << 0;
        /// The right button.
        const RIGHT = 1 << 1;
        /// The middle button, or a pressed wheel.
        const MIDDLE = 1 << 2;
    }
}

/// A change of the mouse from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MouseEvent {
    /// Counts to the right; negative counts are to the left.
    pub right: i32,
    /// Counts down the screen, towards the user; negative counts are up.
    pub down: i32,
    /// Steps of the wheel towards the user, which scroll down; negative steps scroll up.
    pub wheel: i32,
    /// The buttons that are down from now on.
    pub buttons: Buttons,
}

impl MouseEvent {
    /// Merges two moves, if no button was pressed or released between them.
    pub fn followed_by(self, next: Self) -> Self {
        Self {
            right: self.right.saturating_add(next.right),
            down: self.down.saturating_add(next.down),
            wheel: self.wheel.saturating_add(next.wheel),
            buttons: next.buttons,
        }
    }
}
