//! Hostile input, and the properties that must hold for any input.
//!
//! Each module takes any bytes as its input, makes the product process what they describe, and
//! panics if something breaks. The fuzz targets in `fuzz/` pass on the inputs that libFuzzer finds.
//! The tests of this crate use seeds, mutations of these and random bytes, always the same, so that
//! `cargo test` alone runs every target a little.
//!
//! A panic is a finding, and so is a death by signal: the product passes faults that are not the
//! guest's to the previous signal handler.

mod canary;
pub mod confined;
pub mod control;
pub mod devices;
pub mod disk_images;
mod host_state;
mod input;
pub mod loaders;
pub mod mutate;
pub mod requests;
mod saving;
pub mod snapshots;
pub mod text_files;
pub mod translator;
pub mod viewer;
pub mod virtio;

/// A fuzz target: a part of the product that takes hostile input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The target's name for `scripts/fuzz`.
    pub name: &'static str,
    /// Makes the product process this input.
    ///
    /// # Panics
    ///
    /// Panics if something breaks.
    pub run: fn(&[u8]),
    /// Useful initial inputs, with names that describe them.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// All targets, in the order in which they are run.
pub const TARGETS: [Target; 12] = [
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
        name: "forged",
        run: translator::forged::run,
        seeds: translator::forged::seeds,
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
        name: "requests",
        run: requests::run,
        seeds: requests::seeds,
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
    Target {
        name: "snapshots",
        run: snapshots::run,
        seeds: snapshots::seeds,
    },
];
