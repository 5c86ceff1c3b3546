//! Runs every fuzz target with its own seeds and with inputs that are the same in every run.
//!
//! `TOLLGATE_HOSTILE_INPUTS` is the number of inputs for each target, `TOLLGATE_HOSTILE_SEED`
//! selects them. If `TOLLGATE_HOSTILE_FILE` is set to a file (such as one from libFuzzer), only
//! that is run.

use tollgate_hostile::mutate::{self, Random};
use tollgate_hostile::{TARGETS, Target};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn run(name: &str, inputs: u64) {
    let target: &Target = TARGETS.iter().find(|target| target.name == name).unwrap();
    if let Some(path) = std::env::var_os("TOLLGATE_HOSTILE_FILE") {
        let bytes = std::fs::read(path).unwrap();
        // A finding that depends on the time of a signal needs a few attempts.
        for _ in 0..number("TOLLGATE_HOSTILE_INPUTS", 1) {
            (target.run)(&bytes);
        }
        return;
    }
    let seeds = (target.seeds)();
    for (seed, bytes) in &seeds {
        println!("{name}: seed {seed}");
        (target.run)(bytes);
    }
    let mut random = Random::new(number("TOLLGATE_HOSTILE_SEED", 1));
    for index in 0..number("TOLLGATE_HOSTILE_INPUTS", inputs) {
        let bytes = mutate::input(&mut random, &seeds);
        println!("{name}: input {index}: {bytes:02x?}");
        (target.run)(&bytes);
    }
}

#[test]
fn the_translator_keeps_any_guest_code_inside() {
    run("translator", 4000);
}

#[test]
fn blocks_and_single_instructions_are_in_agreement() {
    run("agreement", 3000);
}

#[test]
fn the_devices_survive_any_access_at_any_time() {
    run("devices", 4000);
}

#[test]
fn files_and_drives_survive_any_request_of_the_right_form() {
    run("requests", 1000);
}

#[test]
fn virtio_devices_survive_any_driver() {
    run("virtio", 2000);
}

#[test]
fn the_loaders_load_or_refuse_any_file() {
    run("loaders", 4000);
}

#[test]
fn the_control_socket_answers_any_request() {
    run("control", 20_000);
}

#[test]
fn text_files_of_any_content_are_read_or_refused() {
    run("text_files", 20_000);
}

#[test]
fn a_viewer_gets_nothing_without_the_password_and_never_too_much() {
    run("viewer", 20_000);
}

#[test]
fn writes_harm_no_disk_image_whatever_its_tables_say() {
    run("disk_images", 300);
}

#[test]
fn forged_translations_harm_the_guest_alone() {
    run("forged", 1500);
}

#[test]
fn a_snapshot_of_any_content_is_refused_or_a_machine_continues_from_it() {
    run("snapshots", 1000);
}
