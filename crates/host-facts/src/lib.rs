//! What a program must know of the host that it runs on: which machine it is, which of its
//! processors a thread may use, what the processor counts, and why a file cannot be used.
//!
//! The crate knows nothing of virtual machines. The doctor, the experiments and the command use it.

pub mod file_words;
pub mod hardware_counters;
pub mod processors;
