//! All tests of the machine from outside that can run beside each other, in one program: each
//! program of its own would be linked by itself.

mod apic_page;
mod firmware;
#[path = "../../../tollgate/tests/bare_metal/guests.rs"]
mod guests;
mod kvm_clock;
mod processor_reset;
mod regions;
mod saved_state;
mod two_machines;
