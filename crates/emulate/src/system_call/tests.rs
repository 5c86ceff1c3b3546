//! Facts about `system_call`.
