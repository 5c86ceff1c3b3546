//! All integration tests of the machine that can run at the same time, in one program, because each
//! program would have to be linked by itself.

mod apic_page;
mod firmware;
#[path = "../../../tollgate/tests/bare_metal/guests.rs"]
mod guests;
mod kvm_clock;
mod processor_reset;
mod regions;
mod saved_state;
mod snapshot;
mod two_machines;
