//! Guest code on its way into the code cache: the mode that it is translated for, finding the block
//! at an address, translating ahead of control, stores to translated code, and finding the
//! instruction that caused an exit.

pub(in crate::translated) mod find_block;
pub(in crate::translated) mod instruction_search;
pub(in crate::translated) mod look_ahead;
pub(in crate::translated) mod mode_changes;
pub(in crate::translated) mod stores_to_code;
