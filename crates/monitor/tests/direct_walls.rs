//! Tests that a guest with direct memory access cannot reach memory next to its windows. The guest
//! aims at addresses that are not canonical, at the ends of what a window stands for, and around
//! the end of the address space, with any count and any bit number. It must get the faults that it
//! gets where the monitor executes each instruction, and must never read or write what lies around
//! its windows.
//!
//! These tests need a process of their own. They put memory that must not be touched around the
//! windows of their machine, where the machines of other tests could have windows.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
#[path = "together/support/long_mode/mod.rs"]
mod support;

use std::io;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use support::*;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::StopRequest;
use tollgate_test_support::{Computer, Random, skip};
use tollgate_x86::{CpuState, PhysicalAddress, SegmentRegister};

/// Size of a window in bytes.
const WINDOW: u64 = 1 << 39;
/// Distance from the end of a window to the next window.
const BETWEEN: u64 = 4 << 30;
/// Number of bytes next to a window that are never mapped, because instructions may reach beyond
/// it.
const ROOM: u64 = BETWEEN / 2;
/// Size of each piece of memory next to a window.
const CANARY_BYTES: usize = 1 << 20;
const CANARY: u8 = 0xc7;

/// Instructions that access memory at or near RBX, with RCX as index, count or bit number.
const SHAPES: [&[u8]; 29] = [
    &[0x8a, 0x03],                                                 // mov al,[rbx]
    &[0x48, 0x8b, 0x03],                                           // mov rax,[rbx]
    &[0x48, 0x89, 0x03],                                           // mov [rbx],rax
    &[0x48, 0x89, 0x43, 0x7f],                                     // mov [rbx+7Fh],rax
    &[0x48, 0x8b, 0x83, 0, 0, 0, 0x80],                            // mov rax,[rbx-80000000h]
    &[0x48, 0x89, 0x83, 0xff, 0xff, 0xff, 0x7f],                   // mov [rbx+7FFFFFFFh],rax
    &[0x48, 0x8b, 0x04, 0xcb],                                     // mov rax,[rbx+rcx*8]
    &[0x48, 0x01, 0x04, 0x0b],                                     // add [rbx+rcx],rax
    &[0x67, 0x48, 0x89, 0x04, 0x0b],                               // mov [ebx+ecx],rax
    &[0xf0, 0x48, 0x0f, 0xb1, 0x0b],                               // lock cmpxchg [rbx],rcx
    &[0xf0, 0x48, 0x0f, 0xc7, 0x0b],                               // lock cmpxchg16b [rbx]
    &[0x48, 0x0f, 0xab, 0x0b],                                     // bts [rbx],rcx
    &[0x48, 0x0f, 0xa3, 0x0b],                                     // bt [rbx],rcx
    &[0x0f, 0x28, 0x03],                                           // movaps xmm0,[rbx]
    &[0x0f, 0x11, 0x03],                                           // movups [rbx],xmm0
    &[0xc5, 0xfe, 0x7f, 0x03],                                     // vmovdqu [rbx],ymm0
    &[0x48, 0x87, 0xdc, 0x50],                                     // xchg rsp,rbx; push rax
    &[0x48, 0x87, 0xdc, 0x58, 0x59],                               // xchg rsp,rbx; pop rax; pop rcx
    &[0x48, 0x89, 0xdd, 0xc9],                                     // mov rbp,rbx; leave
    &[0xff, 0x13],                                                 // call [rbx]
    &[0xd7],                                                       // xlat
    &[0x48, 0x89, 0xdf, 0xf3, 0xaa],                               // mov rdi,rbx; rep stosb
    &[0x48, 0x89, 0xde, 0xf3, 0x48, 0xa5],                         // mov rsi,rbx; rep movsq
    &[0x48, 0x8b, 0x03, 0x48, 0x8b, 0x53, 0x40, 0x89, 0x43, 0x08], // loads and a store next to them
    &[0x48, 0x8b, 0x83, 0x00, 0x00, 0x10, 0x00],                   // mov rax,[rbx+100000h]
    &[0x48, 0x89, 0x83, 0x00, 0x00, 0xf0, 0xff],                   // mov [rbx-100000h],rax
    &[0x88, 0x83, 0x00, 0x00, 0x00, 0x80],                         // mov [rbx-80000000h],al
    &[0x64, 0x48, 0x89, 0x43, 0x10],                               // mov fs:[rbx+10h],rax
    &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0x00, 0x00, 0x00],       // mov rax,fs:[28h]
];
/// The instruction `out 0xf4, al`, which ends the run.
const END: [u8; 2] = [0xe6, 0xf4];

/// Memory next to a window that no guest may touch.
struct Canary(*mut u8);

impl Canary {
    fn at(address: u64) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is new and replaces none.
        let mapped = unsafe { libc::mmap(address as *mut _, CANARY_BYTES, rights, flags, -1, 0) };
        assert_eq!(mapped as u64, address, "{}", io::Error::last_os_error());
        // SAFETY: the mapping is that large, and nothing else uses it.
        unsafe { mapped.cast::<u8>().write_bytes(CANARY, CANARY_BYTES) };
        Self(mapped.cast())
    }

    fn is_intact(&self) -> bool {
        // SAFETY: the memory is mapped as long as this value lives; only a guest that escapes
        // writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(self.0, CANARY_BYTES) };
        bytes.iter().all(|&byte| byte == CANARY)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `at` made.
        unsafe { libc::munmap(self.0.cast(), CANARY_BYTES) };
    }
}

fn direct(code: &[u8], set_up: impl Fn(&mut CpuState)) -> Computer<Bench> {
    let mut vcpu = vcpu(code, |state: &mut CpuState, _: &mut _| set_up(state));
    vcpu.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
    vcpu
}

fn has_ended(stop: &VcpuStop) -> bool {
    matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)))
}

/// The addresses at which the process has mapped a page of guest RAM, except in the mapping of all
/// RAM.
fn windows_of(vcpu: &mut Computer<Bench>, physical: u64) -> Vec<u64> {
    let marker = 0x5eed_0bad_cafe_f00d_u64;
    vcpu.memory_mut()
        .write_u64(PhysicalAddress(physical), marker);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("memfd")) {
        let mut words = line.split(['-', ' ']);
        let mut next = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        let (first, end) = (next(), next());
        let offset = u64::from_str_radix(line.split_whitespace().nth(2).unwrap(), 16).unwrap();
        let is_short = end - first < 8 << 20;
        if is_short && (offset..offset + (end - first)).contains(&physical) {
            let place = (first + (physical - offset)) as *const u64;
            // SAFETY: the place is mapped, as /proc/self/maps says, and nothing that runs unmaps
            // it.
            if unsafe { place.read() } == marker {
                found.push(place as u64);
            }
        }
    }
    found
}

/// First addresses of the windows of the lower and the upper half of a machine. The next machine of
/// the same kind will have its windows there, too.
fn window_bases() -> Option<Vec<u64>> {
    let mut bases = Vec::new();
    for (linear, user) in [(SMALL, true), (KERNEL + SMALL_RAM[0], false)] {
        let code = [&[0x48, 0x89, 0x03][..], &END].concat();
        let mut vcpu = direct(&code, |state| {
            if user {
                as_user(state);
            }
            state.gpr[3] = linear;
        });
        assert!(has_ended(&vcpu.run()));
        let place = *windows_of(&mut vcpu, SMALL_RAM[0]).first()?;
        bases.push(place - linear % WINDOW);
    }
    bases.dedup();
    Some(bases)
}

/// Linear addresses at which some region ends.
fn places(random: &mut Random) -> Vec<u64> {
    let mut places = Vec::new();
    let ends = [
        0,
        SMALL,
        SMALL + 0x2000,
        WINDOW,
        2 * WINDOW,
        1 << 47,
        KERNEL,
        DIRECT,
        COMMON[0],
        COMMON[0] + SMALL,
        COMMON[1] + SMALL + 0x2000,
        // The ends of the parts that an anchor leads to, and addresses that it would move into the
        // lower half.
        0xad << 39,
        0xfd << 39,
        (1 << 47) + (0x20 << 39),
    ];
    let upper = [0xffff_8000_0000_0000, u64::MAX - WINDOW + 1, 1 << 63];
    for end in ends.into_iter().chain(upper) {
        let beside = [0, 1, 7, 8, 33, 0x80, 0xfff, 0x1000, 0xffff];
        let distance = random.pick(&beside);
        places.push(end.wrapping_add(distance));
        places.push(end.wrapping_sub(distance));
    }
    for _ in 0..6 {
        let bits = random.next_u64();
        places.push(bits >> random.below(64));
        places.push((bits as i64 >> random.below(20)) as u64);
    }
    places
}

fn count(random: &mut Random) -> u64 {
    let bits = random.next_u64();
    let large = bits >> random.below(64);
    random.pick(&[1, 0, 8, u64::MAX, 1 << 63, 1 << 42, large])
}

fn state_of(vcpu: &mut Computer<Bench>) -> (String, u64) {
    (vcpu.dump(), vcpu.state().cr2)
}

/// Ensures that one test runs at a time: all machines are in one process, and the canaries of one
/// test would lie next to the windows of another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn nothing_but_its_memory_is_reached_from_anywhere() {
    let _alone = alone();
    let Some(bases) = window_bases() else {
        skip::impossible("this process has no place for windows");
        return;
    };
    // Below the region to which parts without a window lead, which lies below the first window.
    let lowest = bases[0] - WINDOW - BETWEEN - CANARY_BYTES as u64;
    let mut canaries = vec![Canary::at(lowest)];
    for base in bases {
        canaries.push(Canary::at(base + WINDOW + ROOM));
    }
    // Below and above the windows that the first anchors lead to: those of programs, and those of
    // libraries and stacks.
    for part in [0x95_u64, 0x99, 0x9d, 0xa1, 0xe8, 0xec, 0xf0, 0xf4] {
        canaries.push(Canary::at((part << 39) + WINDOW / 2));
    }
    let (mut random, mut ends) = (Random::new(5), 0);
    for shape in SHAPES {
        for place in places(&mut random) {
            let user = random.one_in(2);
            let count = count(&mut random);
            let fs = random.pick(&[0, 0, place, place.wrapping_neg()]);
            let set_up = |state: &mut CpuState| {
                if user {
                    as_user(state);
                }
                state.gpr[3] = place;
                state.segment_mut(SegmentRegister::Fs).base = fs;
                state.gpr[1] = count;
                state.gpr[7] = DATA;
                state.gpr[6] = DATA;
                state.gpr[0] = 0x40;
            };
            let code = [shape, &END].concat();
            let what = format!("{shape:x?} at {place:x}, {count:x}, user: {user}");
            let mut alone = vcpu(&code, |state: &mut CpuState, _: &mut _| set_up(state));
            let Some(expected) = (0..50_000).find_map(|_| alone.step_one().err()) else {
                // The guest has stored over its own code.
                continue;
            };
            let mut reaching = direct(&code, set_up);
            let stop = reaching.run();
            ends += 1;
            assert_eq!(has_ended(&stop), has_ended(&expected), "{what}: {stop:?}");
            assert_eq!(state_of(&mut reaching), state_of(&mut alone), "{what}");
        }
        assert!(canaries.iter().all(Canary::is_intact), "{shape:x?}");
    }
    assert!(ends > 700, "{ends}");
}

#[test]
fn two_machines_have_each_their_own() {
    let _alone = alone();
    // The program adds 1 to a word of memory a thousand times.
    let code = guest_code!(
        adds,
        "mov ecx, 1000",
        "2:",
        "inc qword ptr [rbx]",
        "dec ecx",
        "jnz 2b",
        "mov rax, [rbx]",
        "out 0xf4, al",
    );
    let set_up = |state: &mut CpuState| {
        as_user(state);
        state.gpr[3] = SMALL;
    };
    let begun = Barrier::new(4);
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let begun = &begun;
            scope.spawn(move || {
                let mut machine = direct(code, set_up);
                let memory = machine.memory_mut();
                memory.write_u64(PhysicalAddress(SMALL_RAM[0]), number << 32);
                begun.wait();
                assert!(has_ended(&machine.run()));
                assert_eq!(machine.state().gpr[0], (number << 32) + 1000);
            });
        }
    });
}
