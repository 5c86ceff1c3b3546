//! Translations that outlive the process: blocks as bytes, and what is needed to use them again.
//!
//! A kernel that boots, and a program that starts, run the same code each time, and translating it
//! takes a quarter to a half of that time. So an engine can describe its blocks
//! ([`Engine::store`](crate::engine::Engine::store)), and another engine can take them from the
//! description instead of translating
//! ([`Engine::bring_stored`](crate::engine::Engine::bring_stored)):
//!
//! ```text
//! header | index: modes, numbers that are taken, pages | page | page | page ...
//! page:    blocks with their guest bytes, host code and tables | links from and to them
//! ```
//!
//! A page is read when control first reaches it, all its blocks at once with the links between
//! them. So what a run does not need costs nothing, and what it needs costs few exits. What a later
//! run translates of the same page is a further page of the description, which is read where a
//! block is missing: a short command does not take what only a long one runs.
//!
//! - *Which page?* The physical page of the same number, or else one with the same contents. A
//!   block is used only if its guest bytes are in memory, all of them, so a wrong guess costs time
//!   only.
//! - *Numbers.* Host code names its block, its slots and its mode's table by number. The numbers
//!   are part of the description, and the engine that uses it gives none of them to other blocks.
//!   So no code has to be changed.
//! - *Safety.* A file may be damaged or forged. What was signed with the user's key was emitted by
//!   the user's own program. Everything else passes [the verifier](crate::verify) before it can run,
//!   mostly on [a thread](ahead) that is ahead of the guest; that takes longer than translating. The
//!   verifier does not know what the guest's code does, so who can write the file controls the
//!   guest, but not the monitor.

pub mod ahead;
pub mod candidate;
pub mod file;
pub mod key;
pub mod records;

pub use file::StoredTranslations;
