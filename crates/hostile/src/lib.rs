//! Hostile input, and what must hold whatever it is.
//!
//! Each module takes any bytes as its input, lets the product work on what they describe,
//! and panics if something breaks. The fuzz targets in `fuzz/` hand them what libFuzzer
//! finds; the tests of this crate hand them seeds, mutations of those and noise, always
//! the same, so that nothing but `cargo test` is needed to run every target a little.
//!
//! A panic is a find. So is a death by signal: the product leaves faults that are not
//! the guest's to whoever handled them before.

mod canary;
pub mod control;
pub mod devices;
pub mod disk_images;
mod host_state;
mod input;
pub mod loaders;
pub mod mutate;
pub mod text_files;
pub mod translator;
pub mod viewer;
pub mod virtio;

/// Something that takes hostile input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As `scripts/fuzz` names it.
    pub name: &'static str,
    /// Lets the product work on this input.
    ///
    /// # Panics
    /// Something broke.
    pub run: fn(&[u8]),
    /// Inputs that are worth starting from, with the names of what they are.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target {
        name: "translator",
        run: translator::run,
        seeds: translator::seeds,
    },
    Target {
        name: "agreement",
        run: translator::agreement::run,
        seeds: translator::seeds,
    },
    Target {
        name: "devices",
        run: devices::run,
        seeds: devices::seeds,
    },
    Target {
        name: "virtio",
        run: virtio::run,
        seeds: virtio::seeds,
    },
    Target {
        name: "loaders",
        run: loaders::run,
        seeds: loaders::seeds,
    },
    Target {
        name: "control",
        run: control::run,
        seeds: control::seeds,
    },
    Target {
        name: "text_files",
        run: text_files::run,
        seeds: text_files::seeds,
    },
    Target {
        name: "viewer",
        run: viewer::run,
        seeds: viewer::seeds,
    },
    Target {
        name: "disk_images",
        run: disk_images::run,
        seeds: disk_images::seeds,
    },
];
