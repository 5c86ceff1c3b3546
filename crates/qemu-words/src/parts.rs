//! What each group of options means: methods of the builder, one file for each subject.

pub mod characters;
mod devices;
pub mod drives;
mod firmware;
mod machine;
mod monitors;
mod networks;
mod process;
mod shares;
mod smbios;
