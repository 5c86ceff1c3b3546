//! Facts about `base_registers`.
