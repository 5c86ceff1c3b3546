//! The model-specific registers of the time-stamp counter (SDM volume 3, 18.17).

/// IA32_TIME_STAMP_COUNTER: the counter.
pub const TIME_STAMP_COUNTER: u32 = 0x10;
/// IA32_TSC_ADJUST: what software has added to the counter since reset. A change of one is a
/// change of the other (SDM volume 3, 18.17.3).
pub const TIME_STAMP_ADJUST: u32 = 0x3b;
