//! The tables of translated blocks: the memory that holds the blocks' code, and the indexes and
//! links by which blocks are found and reach one another.

pub mod block;
pub mod code_cache;
pub mod code_pages;
pub mod host_order;
mod kept_pages;
pub mod key_index;
pub mod link_memory;
pub mod link_pages;
pub mod links;
pub mod listed;
pub mod made_links;
pub mod packed_tables;
pub mod pages;
pub mod published;
mod recent_sites;
pub mod table;
