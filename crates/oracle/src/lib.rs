//! Compares every unprivileged instruction with the host's processor.
//!
//! Random instructions with random registers and memory run twice: natively, in a 16-, 32- or
//! 64-bit segment of this process ([`native`]), and in a guest through the real monitor
//! ([`guest`]). Everything that a program can see must agree: registers, flags that the manual
//! defines, vector registers, memory, and exceptions with their error code and CR2.
//! `docs/develop/oracle.md` explains how to read the reports.

pub mod bench;
pub mod case;
pub mod compare;
pub mod encode;
pub mod exclusions;
pub mod families;
pub mod generate;
pub mod guest;
pub mod images;
pub mod inputs;
pub mod layout;
pub mod local_descriptors;
pub mod native;
pub mod oracle;
pub mod replay;
pub mod report;
pub mod run;
pub mod shrink;
pub mod tolerance;
pub mod values;
