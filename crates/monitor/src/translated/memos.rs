//! The memos that fast paths compare with: deliveries, level changes and code segments, and the
//! function that fast paths call.

pub(in crate::translated) mod deliveries;
pub(in crate::translated) mod fast_path_calls;
pub(in crate::translated) mod fast_paths;
pub(in crate::translated) mod fault_deliveries;
pub(in crate::translated) mod known_code_segments;
pub(in crate::translated) mod known_tables;
pub(in crate::translated) mod level_change;
pub(in crate::translated) mod space_loads;
pub(in crate::translated) mod tlb_memory;
