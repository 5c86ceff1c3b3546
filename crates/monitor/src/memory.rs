//! Guest memory as the processor sees it, and all data that is derived from the guest's page
//! tables.
//!
//! `guest_view.rs` reads and writes guest memory by linear address. `translations.rs` owns the data
//! derived from page tables: the software TLBs, shadow windows, and the address spaces that are
//! kept while they are not loaded. `fetch.rs` and `decode.rs` find and decode the instruction at
//! CS:EIP.

mod a20;
pub mod access_policy;
pub(crate) mod addresses;
pub(crate) mod decode;
pub(crate) mod faulting_sites;
pub(crate) mod fetch;
pub mod guest_view;
pub(crate) mod kept_spaces;
mod memory_map;
pub(crate) mod native_account;
mod native_comparison;
pub(crate) mod native_prices;
pub(crate) mod program_names;
pub(crate) mod program_pages;
pub(crate) mod ram_copies;
mod shadow_check;
pub mod shadow_tables;
pub mod space_switch;
pub mod translations;
mod unchanged_tables;
pub(crate) mod watched_pages;
pub(crate) mod windows;
