//! What several tests share: guests, the machines that they run in, and checks.

pub mod display;
#[allow(dead_code, reason = "the tests that trace use the rest")]
pub mod every_shape;
pub mod fast_path_time;
pub mod long_mode;
pub mod sixteen_bit;
pub mod virtual_interrupts;
