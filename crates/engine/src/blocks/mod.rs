//! The tables of translated blocks: the memory that holds the blocks' code, and the indexes and
//! links by which blocks are found and reach one another.

pub mod block;
pub mod code_cache;
pub mod code_pages;
pub mod entries_by_page;
pub mod host_offset_index;
mod kept_pages;
pub mod key_index;
pub mod link_memory;
pub mod link_pages;
pub mod link_target;
pub mod links;
pub mod made_links;
pub mod packed_tables;
pub mod pages;
mod recent_sites;
pub mod signal_readable;
pub mod table;
mod table_bytes;
