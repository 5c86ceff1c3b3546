//! What it costs on this host to leave native code and to return, and what that is made of.

#[path = "prices/hand_over.rs"]
mod hand_over;
#[path = "prices/host_calls.rs"]
mod host_calls;

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tollgate_native::{Exit, Instruction, Placement, Rights, Settings, SpaceProcess, UserState};

const HELP: &str = "\
cargo bench -p tollgate-native --bench prices [-- --rounds N]

Prints median and 99th percentile, in microseconds, of what running guest programs natively is made
of: the hand-over between two processes, signals and the way back, leaving and returning as a whole,
changes of mappings, starting a process. N is how often each is done (5,000).

Figures of a host on which other programs run are upper bounds at best.";

/// Where a process may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Processors {
    /// Both processes share one.
    One,
    /// Each process has its own.
    Two,
}

/// Binds the calling thread, and what it starts, to a processor.
pub fn bind(processor: usize) {
    // SAFETY: an all-zero set is empty, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Prints one line of the result.
pub fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000].as_secs_f64() * 1e6;
    println!("{what:<66} {:8.2} {:8.2}", at(500), at(990));
}

/// The times that each of some calls takes.
pub fn time(rounds: usize, mut call: impl FnMut()) -> Vec<Duration> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        call();
        times.push(start.elapsed());
    }
    times
}

fn main() -> ExitCode {
    let mut rounds = 5000;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => match arguments.next().and_then(|count| count.parse().ok()) {
                Some(count) if count > 0 => rounds = count,
                _ => {
                    eprintln!("--rounds needs a number");
                    return ExitCode::FAILURE;
                }
            },
            "--bench" => {}
            _ => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
        }
    }
    match tollgate_native::probe() {
        Ok(offer) => println!("{offer:?}"),
        Err(refusal) => {
            eprintln!("{refusal}");
            return ExitCode::FAILURE;
        }
    }
    println!("{:<66} {:>8} {:>8}", "", "median", "p99");
    bind(0);
    host_calls::all(rounds);
    for (processors, spins, name) in CASES {
        hand_over::measure(processors, spins, name, rounds);
    }
    for (processors, spins, name) in CASES {
        leave_and_return(process(LEAVES, processors, spins), name, rounds);
    }
    with_faults(rounds);
    unbound(rounds);
    mappings(rounds);
    starts(rounds.min(300));
    ExitCode::SUCCESS
}

const CASES: [(Processors, u32, &str); 4] = [
    (Processors::One, 0, "one processor"),
    (Processors::One, 100, "one processor, 100 PAUSE first"),
    (Processors::Two, 0, "two processors"),
    (Processors::Two, 2000, "two processors, 2,000 PAUSE first"),
];

const CODE: u64 = 0x40_0000;
/// 1: SYSCALL; JMP 1b
const LEAVES: &[u8] = &[0x0f, 0x05, 0xeb, 0xfc];

/// A process with this code on the processors, and the state to begin with.
fn process(code: &[u8], processors: Processors, spins: u32) -> (SpaceProcess, UserState) {
    let settings = Settings {
        spins,
        placement: Placement::Free,
        ..Settings::default()
    };
    process_with(code, processors, settings)
}

/// The same with these settings.
fn process_with(
    code: &[u8],
    processors: Processors,
    settings: Settings,
) -> (SpaceProcess, UserState) {
    use std::os::unix::fs::FileExt;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let ram = rustix::fs::memfd_create("ram", flags).expect("a memfd");
    let ram = std::fs::File::from(ram);
    ram.set_len(1 << 20).expect("room");
    ram.write_all_at(code, 0).expect("a write");
    bind(usize::from(processors == Processors::Two));
    let mut process = SpaceProcess::start(ram.as_fd(), settings).expect("a process");
    bind(0);
    process.map(CODE, 4096, 0, Rights::ReadExecute);
    let state = UserState {
        rip: CODE,
        ..UserState::default()
    };
    (process, state)
}

fn leave_and_return(
    (mut process, mut state): (SpaceProcess, UserState),
    name: &str,
    rounds: usize,
) {
    let mut run = || match process.run(&mut state) {
        Ok(Exit::SystemCall(_)) => state.rip += 2,
        exit => panic!("{exit:?}"),
    };
    run();
    let times = time(rounds, run);
    print(&format!("leave by a system call and return, {name}"), times);
}

/// Leaves and returns with instructions made to fault, which the host's kernel sets at each switch
/// between two tasks.
fn with_faults(rounds: usize) {
    let (runs, faults) = (Instruction::Runs, Instruction::Faults);
    let cases = [
        ("CPUID faults", faults, runs),
        ("RDTSC faults", runs, faults),
        ("both fault", faults, faults),
    ];
    for (name, cpuid, time_stamp_counter) in cases {
        let settings = Settings {
            cpuid,
            time_stamp_counter,
            ..Settings::default()
        };
        let process = process_with(LEAVES, Processors::One, settings);
        leave_and_return(process, &format!("one processor, {name}"), rounds);
    }
}

/// Leaves and returns where the kernel chooses the processor of the calling thread.
fn unbound(rounds: usize) {
    use std::os::unix::fs::FileExt;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let ram = rustix::fs::memfd_create("ram", flags).expect("a memfd");
    let ram = std::fs::File::from(ram);
    ram.set_len(4096).expect("room");
    ram.write_all_at(LEAVES, 0).expect("a write");
    bind_to_all();
    for placement in [Placement::Free, Placement::WithCaller] {
        let settings = Settings {
            placement,
            ..Settings::default()
        };
        let mut process = SpaceProcess::start(ram.as_fd(), settings).expect("a process");
        process.map(CODE, 4096, 0, Rights::ReadExecute);
        let mut state = UserState {
            rip: CODE,
            ..UserState::default()
        };
        let times = time(rounds, || match process.run(&mut state) {
            Ok(Exit::SystemCall(_)) => state.rip += 2,
            exit => panic!("{exit:?}"),
        });
        print(
            &format!("leave and return, caller not bound, {placement:?}"),
            times,
        );
    }
    bind(0);
}

/// Lets the calling thread run on the first two processors.
fn bind_to_all() {
    // SAFETY: an all-zero set is empty, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::CPU_SET(1, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn mappings(rounds: usize) {
    let (mut process, _) = process(&[], Processors::One, 0);
    process.flush().expect("mapped");
    let times = time(rounds, || {
        process.map(0x50_0000, 4096, 4096, Rights::ReadWrite);
        process.flush().expect("mapped");
    });
    print("map a page in place of another, one processor", times);
    let times = time(rounds, || {
        process.map(0x50_0000, 16 * 4096, 4096, Rights::ReadWrite);
        process.flush().expect("mapped");
    });
    print("map 16 pages by one command", times);
    let times = time(rounds, || {
        for page in 0..16 {
            process.map(0x50_0000 + page * 4096, 4096, page * 8192, Rights::Read);
        }
        process.flush().expect("mapped");
    });
    print("map 16 pages by 16 commands, one batch", times);
    let (mut running, mut state) = self::process(&[0x0f, 0x05], Processors::One, 0);
    let times = time(rounds, || {
        running.map(0x50_0000, 4096, 4096, Rights::ReadWrite);
        let exit = running.run(&mut state);
        assert!(matches!(exit, Ok(Exit::SystemCall(_))), "{exit:?}");
    });
    print("map a page on the way to the program, leave again", times);
    let times = time(rounds, || {
        running.protect(CODE, 4096, Rights::ReadExecute);
        let exit = running.run(&mut state);
        assert!(matches!(exit, Ok(Exit::SystemCall(_))), "{exit:?}");
    });
    print("change rights before the program, leave again", times);
    let times = time(rounds, || {
        process.unmap(0x50_0000, 4096);
        process.flush().expect("unmapped");
    });
    print("unmap a page that is not mapped", times);
}

fn starts(rounds: usize) {
    let mut times = Vec::new();
    let mut drops = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let (process, _) = process(&[], Processors::One, 0);
        times.push(start.elapsed());
        let start = Instant::now();
        drop(process);
        drops.push(start.elapsed());
    }
    print("start a process (and make guest memory of 1 MiB)", times);
    print("kill and reap it", drops);
}
