//! `tollgate-lockstep`: runs a guest in Tollgate and in QEMU, step by step.
//!
//! This is a developer's tool, not part of the product. QEMU boots the guest up to the kernel's
//! entry; its registers and memory are copied to one of our vCPUs ([`subject`]); from there both
//! execute one instruction at a time ([`comparer`]) and are compared ([`compare`]). QEMU either
//! stops at every instruction ([`stepping`]) or runs freely and writes a log ([`following`]).

mod arguments;
mod compare;
mod comparer;
mod comparer_memory;
mod cpu_dump;
mod device_log;
mod floppy_dma;
mod following;
mod gdb;
mod history;
mod instruction_kind;
mod packet;
mod qemu;
mod random_guest;
mod reference;
mod registers;
mod replay;
mod report;
mod stepping;
mod subject;

use arguments::Arguments;
use clap::Parser;
use comparer::{Comparer, Ending, Limits};
use following::Following;
use qemu::{Guest, Qemu, Start};
use reference::Reference;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use stepping::Stepping;
use subject::Subject;
use tollgate_machine::boot::{self, BootSource, KernelKind, firmware};
use tollgate_machine::config::VmConfig;
use tollgate_memory::GuestMemory;

/// Exit code: no difference was found.
const AGREED: u8 = 0;
/// Exit code: the two sides differ.
const PARTED: u8 = 1;
/// Exit code: the comparison failed.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match compare_guest(&arguments) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("tollgate-lockstep: error: {error}");
            FAILED.into()
        }
    }
}

fn compare_guest(arguments: &Arguments) -> io::Result<u8> {
    if let (Some(seed), Some(path)) = (arguments.random, &arguments.write) {
        std::fs::write(path, random_guest::image(seed, arguments.count))?;
        return Ok(AGREED);
    }
    if arguments.floppy.is_some() || arguments.disk.is_some() {
        return compare_firmware(arguments);
    }
    let kernel = match arguments.random {
        Some(seed) => random_kernel(seed, arguments.count)?,
        None => arguments.kernel.clone().unwrap_or_default(),
    };
    let config = VmConfig {
        kernel,
        initrd: arguments.initrd.clone(),
        append: arguments.append.clone(),
        memory_bytes: arguments.memory << 20,
        verify_code: arguments.verify_code,
        ..VmConfig::default()
    };
    let (entry, kind) = find_entry(&config)?;
    let mut qemu = Qemu::start(&Guest {
        start: match kind {
            KernelKind::BootSector => Start::BootSector(&config.kernel),
            _ => Start::Kernel {
                kernel: &config.kernel,
                initrd: config.initrd.as_deref(),
                append: &config.append,
            },
        },
        memory_bytes: config.memory_bytes,
        cpu: &arguments.cpu,
        command: &arguments.qemu,
    })?;
    qemu.run_to(arguments.start_at.unwrap_or(entry))?;
    let subject = Subject::new(&mut qemu, &config)?;
    let limits = limits(arguments);
    if arguments.random.is_some() {
        // Both sides have read the file.
        let _ = std::fs::remove_file(&config.kernel);
    }
    if arguments.follow {
        compare_with(Comparer::new(subject, Following::new(qemu)?, limits))
    } else {
        compare_with(Comparer::new(subject, Stepping::new(qemu)?, limits))
    }
}

fn limits(arguments: &Arguments) -> Limits {
    Limits {
        steps: arguments.steps,
        until: arguments.until,
        until_text: arguments.until_text.clone(),
        ignored_flags: arguments.ignore_flags,
        keep_going: arguments.keep_going,
    }
}

/// Compares from the reset vector on, where both sides have the same state.
fn compare_firmware(arguments: &Arguments) -> io::Result<u8> {
    let rom = match &arguments.bios {
        Some(path) => path.clone(),
        None => firmware::find().map_err(io::Error::other)?,
    };
    let config = VmConfig {
        firmware: Some(rom.clone()),
        memory_bytes: arguments.memory << 20,
        verify_code: arguments.verify_code,
        ..VmConfig::default()
    };
    let mut qemu = Qemu::start(&Guest {
        start: Start::Firmware {
            rom: &rom,
            floppy: arguments.floppy.as_deref(),
            disk: arguments.disk.as_deref(),
        },
        memory_bytes: config.memory_bytes,
        cpu: &arguments.cpu,
        command: &arguments.qemu,
    })?;
    let subject = Subject::new(&mut qemu, &config)?;
    let following = Following::new(qemu)?;
    let mut comparer = Comparer::new(subject, following, limits(arguments));
    let code = run(&mut comparer)?;
    if code == AGREED {
        // The guest, or a device on its behalf, has written all of this memory.
        let (count, first) = comparer.compare_all_memory(config.memory_bytes)?;
        let place = first.map_or(String::new(), |first| {
            format!(", the first at {:08x}", first.0)
        });
        println!("RAM: {count} bytes differ{place} (QEMU is some instructions ahead)");
        println!("screen:");
        for line in comparer.screen_lines() {
            println!("  {line}");
        }
    }
    Ok(code)
}

/// Writes a guest of random instructions to a file that both sides can read.
fn random_kernel(seed: u64, count: u32) -> io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!(
        "tollgate-lockstep.{}.{seed}.bin",
        std::process::id()
    ));
    std::fs::write(&path, random_guest::image(seed, count))?;
    Ok(path)
}

/// The address where our own loader enters the kernel; QEMU's loaders follow the same protocols.
fn find_entry(config: &VmConfig) -> io::Result<(u64, KernelKind)> {
    let name = config.kernel.display().to_string();
    let kind = boot::recognise(&std::fs::read(&config.kernel)?, &name).map_err(io::Error::other)?;
    if !matches!(
        kind,
        KernelKind::BzImage | KernelKind::Multiboot | KernelKind::BootSector
    ) {
        return Err(io::Error::other(format!(
            "{name}: QEMU does not load this kind of kernel ({kind:?})"
        )));
    }
    let mut memory = GuestMemory::new(config.memory_bytes).map_err(io::Error::other)?;
    let state = boot::load(&BootSource::of(config), &mut memory).map_err(io::Error::other)?;
    Ok((state.cs().base.wrapping_add(state.rip), kind))
}

fn compare_with<R: Reference>(mut comparer: Comparer<R>) -> io::Result<u8> {
    run(&mut comparer)
}

fn run<R: Reference>(comparer: &mut Comparer<R>) -> io::Result<u8> {
    let started = Instant::now();
    let ending = comparer.run()?;
    let seconds = started.elapsed().as_secs_f64();
    for note in &comparer.notes {
        println!("note: {note}");
    }
    println!(
        "{} instructions in {seconds:.1} s ({:.0} a second), {} results taken from QEMU, {} interrupts",
        comparer.count,
        comparer.count as f64 / seconds.max(1e-3),
        comparer.inputs,
        comparer.interrupts
    );
    Ok(match ending {
        Ending::StepsDone => {
            println!("no difference");
            AGREED
        }
        Ending::Reached => {
            println!("no difference up to there");
            AGREED
        }
        Ending::BothEnded(how) => {
            println!("no difference: {how}");
            AGREED
        }
        Ending::Differs(parting) => {
            print!("{}", report::report(&parting, &comparer.history));
            PARTED
        }
    })
}
