//! Measures the time from the start of the process to the guest's first instruction.
//!
//! The guest is a boot sector that ends the machine immediately, so the time of a whole run,
//! including the end of the process, is an upper bound. `--stats` reports the part up to the first
//! instruction, without the start of the process itself.

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Runs of each kind. The first one warms the caches and is not counted.
const RUNS: usize = 21;
/// The exit code that isa-debug-exit makes of 10h.
const EXPECTED_EXIT: i32 = 33;
/// The guest's code: `mov al, 10h; out F4h, al`.
const LEAVE: [u8; 4] = [0xb0, 0x10, 0xe6, 0xf4];

fn main() -> ExitCode {
    let name = format!("tollgate-start-up-{}.img", std::process::id());
    let guest = std::env::temp_dir().join(name);
    let mut sector = [0; 512];
    sector[..LEAVE.len()].copy_from_slice(&LEAVE);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    if let Err(error) = fs::write(&guest, sector) {
        eprintln!("{}: {error}", guest.display());
        return ExitCode::FAILURE;
    }
    let result = measure(&guest);
    let _ = fs::remove_file(&guest);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(guest: &std::path::Path) -> Result<(), String> {
    for memory in ["16M", "512M", "3G"] {
        let mut whole = Vec::new();
        let mut told = Vec::new();
        for _ in 0..RUNS {
            let (elapsed, start_up) = run(guest, memory)?;
            whole.push(elapsed.as_secs_f64() * 1e3);
            told.push(start_up);
        }
        println!(
            "--memory {memory:>4}: process start to first instruction below {:.1} ms \
             (whole run; worst {:.1} ms), of which set-up {:.1} ms; medians of {}",
            median(&mut whole[1..]),
            whole.last().copied().unwrap_or_default(),
            median(&mut told[1..]),
            RUNS - 1
        );
    }
    Ok(())
}

/// Runs the guest once; returns the time of the whole run, and the milliseconds that `--stats`
/// reports.
fn run(guest: &std::path::Path, memory: &str) -> Result<(Duration, f64), String> {
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--stats", "--memory", memory, "--kernel"])
        .arg(guest)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let elapsed = started.elapsed();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(EXPECTED_EXIT) {
        return Err(format!("{}: {errors}", output.status));
    }
    let told = errors
        .lines()
        .find_map(|line| line.strip_prefix("start-up: ")?.strip_suffix(" ms"))
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("no start-up time in: {errors}"))?;
    Ok((elapsed, told))
}

/// Sorts the values and returns the middle one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
