//! The model-specific registers of the time-stamp counter (SDM volume 3, 18.17).

/// IA32_TIME_STAMP_COUNTER: the counter.
pub const TIME_STAMP_COUNTER: u32 = 0x10;
/// IA32_TSC_ADJUST: the sum of what software has added to the counter since reset. A write to
/// either register changes the other by the same amount (SDM volume 3, 18.17.3).
pub const TIME_STAMP_ADJUST: u32 = 0x3b;
