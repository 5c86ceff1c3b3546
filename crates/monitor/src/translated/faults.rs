//! Faults and signals that the host raises while guest code runs, and the order in which a guest
//! sees the faults of one instruction.

pub(in crate::translated) mod fault_order;
pub(in crate::translated) mod guarded_pages;
pub(in crate::translated) mod host_faults;
pub(in crate::translated) mod masked_vector_accesses;
pub(in crate::translated) mod window_faults;
