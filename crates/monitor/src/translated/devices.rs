//! Instructions with operands in device memory and display memory, executed without an exit where
//! that is possible.

pub(in crate::translated) mod call_state;
pub(in crate::translated) mod device_fast_path;
pub(in crate::translated) mod device_memory;
pub(in crate::translated) mod device_memory_notes;
pub(in crate::translated) mod device_strings;
pub(in crate::translated) mod display_reach;
