//! The general registers of the host, by number.
#![allow(missing_docs, reason = "each name is the manual's")]

/// A host register, by encoding number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host(pub u8);

pub const RAX: Host = Host(0);
pub const RCX: Host = Host(1);
pub const RDX: Host = Host(2);
pub const RBX: Host = Host(3);
pub const RSP: Host = Host(4);
pub const RBP: Host = Host(5);
pub const RSI: Host = Host(6);
pub const RDI: Host = Host(7);
pub const R8: Host = Host(8);
pub const R9: Host = Host(9);
// R10 has no name here, so that no code uses it as a scratch register: see `register_map::COUNT`.
pub const R11: Host = Host(11);
pub const R12: Host = Host(12);
pub const R13: Host = Host(13);
pub const R14: Host = Host(14);
pub const R15: Host = Host(15);
