//! A DOS that the user supplies, as a guest: SeaBIOS boots it from a floppy disk image, and it
//! finds a disk C: with programs and files of ours.
//!
//! ```text
//! boot -----> the prompt of drive A: appears on the screen; "c:" is typed
//! work -----> "hooks ROUNDS TICKS FILE" is typed: HOOKS.COM stays in memory, hooks INT 10h, 13h,
//!             16h, 1Ah, 1Ch, 21h, 28h, and types the scan codes in FILE whenever DOS waits for a
//!             key (INT 28h)
//!               mark "begin" ---- the rounds ---- mark "end"
//! done <----- a line on the serial port: rounds, keys, calls of each vector
//! check       the files on C:, read from its image, and the text on the screen
//! ```
//!
//! All keys arrive through the keyboard controller and IRQ 1; all requests to DOS are made as any
//! program makes them. The sources of our programs are in `guests/dos`; `scripts/get-dos-programs`
//! builds free ones of DOS's time.

mod disk;
mod guest;
mod primes;
mod programs;
mod sums;
mod work;

pub use guest::{Done, DosGuest, check_image};
pub use programs::Media;
pub use work::{Work, works};
