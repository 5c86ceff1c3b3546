//! Experiments: they run variants of a machine next to each other, measure, and print tables and
//! plots.
//!
//! An experiment uses the machine as a library and does not depend on the command line.

pub mod cost;
pub mod dos;
pub mod experiment;
pub mod experiments;
pub mod guest_versions;
mod icache;
mod interruptible;
pub mod linux_guest;
mod nameless_file;
mod native_code;
mod other_guest;
mod paged_guest;
pub mod report;
mod running_guest;
mod shadow;
pub mod small_system;
pub mod statistics;
mod vif;

/// A static i386 Linux program that repeats the null hypercall from ring 3 and prints
/// what it cost; its source is `guests/hypercall-linux.S`.
pub const HYPERCALL_LINUX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hypercall-linux.bin"));

/// The same program for x86-64.
pub const HYPERCALL_LINUX_64: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/hypercall-linux-64.bin"));
