//! `tollgate-register-use`: how often a guest's code uses each general register.
//!
//! This is a developer's tool, not part of the product. It provides the figures for the choice of
//! guest registers that live in host registers (`crates/engine/src/abi/register_map.rs`). It boots
//! a guest as `tollgate run` does, stops it every millisecond, executes some hundred instructions
//! one by one, and counts the registers that 64-bit code among them uses, by ring.
//!
//! ```text
//! tollgate-register-use --kernel vmlinuz --initrd initrd.img --append console=ttyS0 \
//!     --after ' # ' --type 'sha256sum /bin/busybox; poweroff -f'
//! ```

use clap::Parser;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpKind};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate_machine::board::input::Key;
use tollgate_machine::boot::{self, BootSource};
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::{Outside, Pc};
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::state::Activity;

/// How often the guest is stopped.
const PERIOD: Duration = Duration::from_millis(1);
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Counts how often a 64-bit guest's code uses each general register.
#[derive(Parser, Debug)]
#[command(name = "tollgate-register-use", version)]
struct Arguments {
    /// The kernel to boot
    #[arg(long, value_name = "PATH")]
    kernel: PathBuf,
    /// Initial RAM disk
    #[arg(long, value_name = "PATH")]
    initrd: Option<String>,
    /// The kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Guest RAM in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(32..=2048))]
    memory: u64,
    /// Text on the serial port after which to type
    #[arg(long, value_name = "TEXT", requires = "type")]
    after: Option<String>,
    /// The text to type then, followed by a new line
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    r#type: Option<String>,
    /// Number of instructions that are executed one by one at each stop
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    window: u32,
}

/// The guest's output, shared with the loop that waits for a text.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.extend_from_slice(bytes);
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn has(&self, wanted: &str) -> bool {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.windows(wanted.len().max(1))
            .any(|window| window == wanted.as_bytes())
    }
}

/// A thread that asks the machine to stop periodically.
struct Sampler {
    is_due: Arc<AtomicBool>,
}

impl Outside for Sampler {
    fn serial_input(&mut self, _room: usize) -> Vec<u8> {
        Vec::new()
    }

    fn key(&mut self) -> Option<(Key, bool)> {
        None
    }

    fn wants_attention(&mut self) -> bool {
        self.is_due.swap(false, Ordering::Relaxed)
    }
}

/// The uses of one register.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// Number of instructions whose address contains it.
    address: u64,
    /// Number of instructions that read it in another way.
    read: u64,
    /// Number of instructions that write it.
    write: u64,
    /// Number of instructions that use it without naming it as an operand.
    implicit: u64,
}

fn reads(access: OpAccess) -> bool {
    use OpAccess::*;
    matches!(access, Read | CondRead | ReadWrite | ReadCondWrite)
}

fn writes(access: OpAccess) -> bool {
    use OpAccess::*;
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// The uses of all registers in one ring.
#[derive(Default)]
struct Count {
    instructions: u64,
    uses: [Uses; 16],
}

impl Count {
    fn add(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        self.instructions += 1;
        let mut address = 0u32;
        if (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory) {
            for register in [instruction.memory_base(), instruction.memory_index()] {
                if register.is_gpr() {
                    address |= 1 << (register.full_register().number() & 15);
                }
            }
        }
        let mut named = address;
        for index in 0..instruction.op_count() {
            let register = instruction.op_register(index);
            if register.is_gpr() {
                named |= 1 << (register.full_register().number() & 15);
            }
        }
        let info = info.info(instruction);
        let (mut read, mut written) = (0u32, 0u32);
        for used in info.used_registers() {
            if used.register().is_gpr() {
                let bit = 1 << (used.register().full_register().number() & 15);
                read |= if reads(used.access()) { bit } else { 0 };
                written |= if writes(used.access()) { bit } else { 0 };
            }
        }
        // A register that is read only for the address counts as part of the address.
        let operands = (0..instruction.op_count())
            .filter(|&index| reads(info.op_access(index)))
            .map(|index| instruction.op_register(index))
            .filter(|register| register.is_gpr())
            .fold(0, |all, register| {
                all | 1 << (register.full_register().number() & 15)
            });
        read &= !address | operands;
        for (number, uses) in self.uses.iter_mut().enumerate() {
            let has = |set: u32| u64::from(set >> number & 1);
            uses.address += has(address);
            uses.read += has(read);
            uses.write += has(written);
            uses.implicit += has((read | written) & !named);
        }
    }

    fn print(&self, what: &str) {
        println!("\n{what}: {} instructions", self.instructions);
        println!("uses in 1000 instructions, and how many do not name the register");
        println!(
            "{:<5} {:>8} {:>8} {:>8} {:>8} {:>9}",
            "", "address", "read", "write", "sum", "implicit"
        );
        let each = |count: u64| count as f64 * 1e3 / self.instructions.max(1) as f64;
        let sum = |uses: &Uses| uses.address + uses.read + uses.write;
        let mut order: Vec<usize> = (0..16).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(sum(&self.uses[number])));
        for number in order {
            let uses = &self.uses[number];
            println!(
                "{:<5} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>9.1}",
                NAMES[number],
                each(uses.address),
                each(uses.read),
                each(uses.write),
                each(sum(uses)),
                each(uses.implicit)
            );
        }
    }
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate-register-use: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let config = VmConfig {
        kernel: arguments.kernel.clone(),
        initrd: arguments.initrd.clone(),
        append: arguments.append.clone(),
        memory_bytes: arguments.memory << 20,
        ..VmConfig::default()
    };
    let mut memory = GuestMemory::new(config.memory_bytes).map_err(io::Error::other)?;
    let state = boot::load(&BootSource::of(&config), &mut memory).map_err(io::Error::other)?;
    let output = Output::default();
    let is_due = Arc::new(AtomicBool::new(false));
    let mut machine = Pc::new(&config, memory.clone(), Box::new(output.clone()));
    machine.connect(Box::new(Sampler {
        is_due: Arc::clone(&is_due),
    }));
    let cache = usize::try_from(config.code_cache_bytes).unwrap_or(usize::MAX);
    let mut vcpu = Vcpu::new(state, memory, cache, false)?;
    let kick = vcpu.kick();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(PERIOD);
            is_due.store(true, Ordering::Relaxed);
            kick.kick();
        }
    });

    let mut rings = [Count::default(), Count::default()];
    let mut info = InstructionInfoFactory::new();
    let mut to_type = arguments.r#type.as_deref();
    let mut typed: Vec<u8> = Vec::new();
    let end = loop {
        match vcpu.run(&mut machine) {
            VcpuStop::Requested(StopRequest::Attention) => {}
            stop => break stop,
        }
        let is_time = |after: &str| output.has(after);
        if arguments.after.as_deref().is_some_and(is_time)
            && let Some(line) = to_type.take()
        {
            typed.extend(line.bytes().chain([b'\n']));
        }
        let space = machine.serial_input_space().min(typed.len());
        machine.serial_input(&typed[..space]);
        typed.drain(..space);
        if let Err(stop) = sample(
            (&mut vcpu, &mut machine),
            arguments.window,
            &mut rings,
            &mut info,
        ) {
            break stop;
        }
        vcpu.clock_changed();
    };
    rings[0].print("ring 0");
    rings[1].print("ring 3");
    match end {
        VcpuStop::Requested(_) => Ok(()),
        VcpuStop::TripleFault(state) => Err(io::Error::other(format!("triple fault\n{state}"))),
        VcpuStop::NotImplemented(why) => Err(io::Error::other(why)),
    }
}

/// Executes some instructions one by one, and counts those of 64-bit code.
fn sample(
    (vcpu, machine): (&mut Vcpu, &mut Pc),
    window: u32,
    rings: &mut [Count; 2],
    info: &mut InstructionInfoFactory,
) -> Result<(), VcpuStop> {
    for _ in 0..window {
        if vcpu.state().activity != Activity::Running {
            break;
        }
        let Some(instruction) = vcpu.next_instruction() else {
            break;
        };
        let state = vcpu.state();
        if state.is_64_bit() {
            rings[usize::from(state.cpl() == 3)].add(&instruction, info);
        }
        match vcpu.step_one(machine) {
            Ok(()) | Err(VcpuStop::Requested(StopRequest::Attention)) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    /// The address, read, write and implicit uses of each register that is used.
    fn uses(code: &[u8]) -> Vec<(&'static str, [u64; 4])> {
        let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
        let mut count = Count::default();
        count.add(&instruction, &mut InstructionInfoFactory::new());
        let figures = |uses: &Uses| [uses.address, uses.read, uses.write, uses.implicit];
        NAMES
            .into_iter()
            .zip(count.uses.iter().map(figures))
            .filter(|(_, figures)| *figures != [0; 4])
            .collect()
    }

    #[test]
    fn operands_and_parts_of_addresses_are_told_apart() {
        // add r12d, [rbx+rcx*4]
        assert_eq!(
            uses(&[0x44, 0x03, 0x24, 0x8b]),
            [
                ("rcx", [1, 0, 0, 0]),
                ("rbx", [1, 0, 0, 0]),
                ("r12", [0, 1, 1, 0])
            ]
        );
        // mov [rbx], rbx
        assert_eq!(uses(&[0x48, 0x89, 0x1b]), [("rbx", [1, 1, 0, 0])]);
        // mov rsi, [rsi]
        assert_eq!(uses(&[0x48, 0x8b, 0x36]), [("rsi", [1, 0, 1, 0])]);
    }

    #[test]
    fn registers_that_are_not_named_are_implicit() {
        // push r9
        assert_eq!(
            uses(&[0x41, 0x51]),
            [("rsp", [0, 1, 1, 1]), ("r9", [0, 1, 0, 0])]
        );
        // cqo
        assert_eq!(
            uses(&[0x48, 0x99]),
            [("rax", [0, 1, 0, 1]), ("rdx", [0, 0, 1, 1])]
        );
    }
}
