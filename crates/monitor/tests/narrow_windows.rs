//! Tests 32-bit guests with direct memory access, with two-level tables and with PAE: every form of
//! access, at addresses where a region ends, has the result that it has instruction by instruction,
//! with the same fault; and memory around the windows is never read or written.
//!
//! These tests need a process of their own. They find the windows of their machine among all
//! mappings of the process and put memory that must not be touched around them, where the machines
//! of other tests could have windows.

use std::io;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, Random, flat_state, skip};
use tollgate_x86::state::TableRegister;
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

const CODE: u64 = 0x1000;
const HANDLER: u64 = 0x1800;
const IDT: u64 = 0x2000;
const GDT: u64 = 0x2800;
const TSS: u64 = 0x3000;
const STACK: u64 = 0x5000;
const DIRECTORY: u64 = 0x10_000;
/// Page tables of the first part, the kernel's and the last, and with PAE their directories.
const TABLES: u64 = 0x11_000;
/// Physical address of the data, followed by the addresses at which the kernel, programs and the
/// last pages see the data.
const DATA: u64 = 0x10_0000;
const KERNEL: u64 = 0xc000_0000;
const PROGRAM: u64 = 0x4_0000;
const LAST: u64 = 0xffff_e000;
const MEMORY: u64 = 4 << 20;

const P: u64 = 1;
const W: u64 = 2;
const U: u64 = 4;
const A: u64 = 0x20;
const D: u64 = 0x40;
const G: u64 = 0x100;

/// Number of bytes, from the start of a window on, that accesses may reach.
const WINDOW: u64 = 1 << 32;
const CANARY_BYTES: usize = 1 << 20;
const CANARY: u8 = 0xc7;

/// Instructions that access memory at or near EBX, with ECX as index, count or bit number.
const SHAPES: [&[u8]; 31] = [
    &[0x8a, 0x03],                                     // mov al,[ebx]
    &[0x8b, 0x03],                                     // mov eax,[ebx]
    &[0x89, 0x03],                                     // mov [ebx],eax
    &[0x66, 0x89, 0x43, 0x7f],                         // mov [ebx+7Fh],ax
    &[0x8b, 0x83, 0, 0, 0, 0x80],                      // mov eax,[ebx-80000000h]
    &[0x89, 0x83, 0xff, 0xff, 0xff, 0x7f],             // mov [ebx+7FFFFFFFh],eax
    &[0x8b, 0x04, 0xcb],                               // mov eax,[ebx+ecx*8]
    &[0x01, 0x04, 0x0b],                               // add [ebx+ecx],eax
    &[0x67, 0x89, 0x07],                               // mov [bx],eax
    &[0xfe, 0x43, 0x01],                               // inc byte [ebx+1]
    &[0x88, 0x23],                                     // mov [ebx],ah
    &[0xd3, 0x23],                                     // shl dword [ebx],cl
    &[0xf0, 0x0f, 0xb1, 0x0b],                         // lock cmpxchg [ebx],ecx
    &[0xf0, 0x0f, 0xc7, 0x0b],                         // lock cmpxchg8b [ebx]
    &[0x87, 0x03],                                     // xchg [ebx],eax
    &[0x0f, 0xab, 0x0b],                               // bts [ebx],ecx
    &[0x0f, 0xa3, 0x0b],                               // bt [ebx],ecx
    &[0x0f, 0x28, 0x03],                               // movaps xmm0,[ebx]
    &[0x0f, 0x11, 0x03],                               // movups [ebx],xmm0
    &[0xd9, 0x03, 0xdd, 0x5b, 0x08],                   // fld dword [ebx]; fstp qword [ebx+8]
    &[0x87, 0xdc, 0x50],                               // xchg esp,ebx; push eax
    &[0x87, 0xdc, 0x58, 0x59],                         // xchg esp,ebx; pop eax; pop ecx
    &[0x87, 0xdc, 0x60, 0x61],                         // xchg esp,ebx; pushad; popad
    &[0x89, 0xdd, 0xc9],                               // mov ebp,ebx; leave
    &[0xff, 0x13],                                     // call [ebx]
    &[0x87, 0xdc, 0xc3],                               // xchg esp,ebx; ret
    &[0xd7],                                           // xlat
    &[0x89, 0xdf, 0xf3, 0xaa],                         // mov edi,ebx; rep stosb
    &[0x89, 0xde, 0xf3, 0xa5],                         // mov esi,ebx; rep movsd
    &[0x8b, 0x03, 0x8b, 0x53, 0x40, 0x89, 0x43, 0x08], // loads and a store next to them
    &[0x64, 0x89, 0x43, 0x10],                         // mov fs:[ebx+10h],eax
];
/// The instruction `out 0xf4, al`, which ends the run.
const END: [u8; 2] = [0xe6, 0xf4];

/// A machine that ends at a write to any port.
#[derive(Default)]
struct Bench(Option<StopRequest>);

impl BareMachine for Bench {
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.0 = Some(StopRequest::DebugExit(value as u8));
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.0.take()
    }
}

/// The kind of guest.
#[derive(Clone, Copy, Debug)]
struct Guest {
    pae: bool,
    user: bool,
    write_protect: bool,
}

/// Writes one entry of the guest's page tables.
fn map(memory: &mut GuestMemory, guest: Guest, linear: u64, entry: u64) {
    let number = |span: u64| match linear / span {
        0 => 0,
        part if part == KERNEL / span => 1,
        _ => 2,
    };
    let upper = P | W | U | A;
    if guest.pae {
        let table = TABLES + number(2 << 20) * 0x1000;
        let directory = DIRECTORY + 0x4000 + number(1 << 30) * 0x1000;
        let index = linear >> 21 & 511;
        memory.write_u64(PhysicalAddress(directory + index * 8), table | upper);
        memory.write_u64(PhysicalAddress(table + (linear >> 12 & 511) * 8), entry);
    } else {
        let table = TABLES + number(4 << 20) * 0x1000;
        memory.write_u32(
            PhysicalAddress(DIRECTORY + (linear >> 22) * 4),
            (table | upper) as u32,
        );
        memory.write_u32(
            PhysicalAddress(table + (linear >> 12 & 1023) * 4),
            entry as u32,
        );
    }
}

fn prepare_memory(guest: Guest, code: &[u8]) -> GuestMemory {
    let mut memory = GuestMemory::new(MEMORY).unwrap();
    for page in 0..0x20_u64 {
        let writable = W * u64::from((TSS..STACK).contains(&(page << 12)));
        map(
            &mut memory,
            guest,
            page << 12,
            page << 12 | P | U | A | writable,
        );
    }
    // For both kinds: pages that may be stored to, dirty and not, one that is read-only, and none.
    let rights = [W | A | D, W, 0, W | A | D, W, W | A | D, 0];
    let present = |number: usize| P * u64::from(number != 3);
    for (number, rights) in rights.into_iter().enumerate() {
        let (place, is) = (number as u64 * 0x1000, rights | present(number));
        let to = DATA + (place ^ 0x1000);
        map(&mut memory, guest, KERNEL + place, to | is | G);
        map(
            &mut memory,
            guest,
            PROGRAM + place,
            (to + 0x1_0000) | is | U,
        );
    }
    let last = match guest.user {
        true => U,
        false => G,
    };
    for place in [0, 0x1000] {
        map(
            &mut memory,
            guest,
            LAST + place,
            (DATA + 0x2_0000 + place) | P | W | last,
        );
    }
    for place in (0..0x2_2000).step_by(4) {
        memory.write_u32(PhysicalAddress(DATA + place), 0x1020 + place as u32 * 3);
    }
    let code_descriptor = 0x00cf_9b00_0000_ffff_u64;
    let data_descriptor = 0x00cf_9300_0000_ffff_u64;
    for (index, descriptor) in [(2, code_descriptor), (3, data_descriptor)] {
        let user = descriptor | 3 << 45;
        memory.write_u64(PhysicalAddress(GDT + index * 8), descriptor);
        memory.write_u64(PhysicalAddress(GDT + (index + 2) * 8), user);
    }
    for vector in 0..32 {
        // A 32-bit interrupt gate through selector 10h.
        let gate = HANDLER | 0x10 << 16 | 0x8e00 << 32;
        memory.write_u64(PhysicalAddress(IDT + vector * 8), gate);
    }
    memory.write_u32(PhysicalAddress(TSS + 4), STACK as u32);
    memory.write_u32(PhysicalAddress(TSS + 8), 0x18);
    memory.write(PhysicalAddress(CODE), code);
    memory.write(PhysicalAddress(HANDLER), &END);
    memory
}

fn prepare_state(guest: Guest) -> CpuState {
    let mut state = flat_state(CODE);
    state.cr0 |= 1 << 31 | u64::from(guest.write_protect) << 16;
    // CR4: OSFXSR, PGE, PAE.
    state.cr4 |= 0x280 | u64::from(guest.pae) << 5;
    state.cr3 = DIRECTORY;
    for (quarter, number) in [(0, 0), (3, 1)] {
        state.pdpte[quarter] = (DIRECTORY + 0x4000 + number * 0x1000) | P;
    }
    let table = |base, limit| TableRegister { base, limit };
    (state.gdtr, state.idtr) = (table(GDT, 0x3f), table(IDT, 0xff));
    state.tr = Segment {
        base: TSS,
        limit: 0x67,
        selector: Selector(0x30),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    state.gpr[4] = STACK - 0x100;
    if guest.user {
        // IOPL is 3, so that programs may write to ports.
        state.set_flags(state.flags() | tollgate_x86::Flags::from_bits_retain(3 << 12));
        for register in SegmentRegister::ALL {
            let segment = state.segment_mut(register);
            let is_code = register == SegmentRegister::Cs;
            segment.selector = Selector(if is_code { 0x23 } else { 0x2b });
            segment.attributes =
                Attributes::from_bits_retain(if is_code { 0xc0fb } else { 0xc0f3 });
        }
    }
    state
}

fn vcpu(guest: Guest, code: &[u8], set_up: impl Fn(&mut CpuState)) -> Computer<Bench> {
    let mut state = prepare_state(guest);
    set_up(&mut state);
    let memory = prepare_memory(guest, code);
    let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
    vcpu.change_state(|_| ());
    vcpu
}

fn direct(guest: Guest, code: &[u8], set_up: impl Fn(&mut CpuState)) -> Computer<Bench> {
    let mut vcpu = vcpu(guest, code, set_up);
    vcpu.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
    vcpu
}

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

/// The address of a guest's window in the process. The next guest of the same kind will have its
/// window there, too.
fn window_base(guest: Guest) -> Option<u64> {
    let linear = if guest.user { PROGRAM } else { KERNEL };
    let mut vcpu = direct(guest, &[&[0x89, 0x03][..], &END].concat(), |state| {
        state.gpr[3] = linear;
        state.gpr[0] = 0x5eed_0bad;
    });
    vcpu.run();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let mut words = line.split(['-', ' ']);
        let first = u64::from_str_radix(words.next()?, 16).ok()?;
        let offset = u64::from_str_radix(line.split_whitespace().nth(2)?, 16).ok()?;
        let is_window = (0x1100_0000_0000..0x5500_0000_0000).contains(&first);
        (is_window && line.contains("memfd") && offset >= DATA).then_some(first & !0xffff_ffff)
    })
}

fn places(random: &mut Random) -> Vec<u64> {
    let mut places = Vec::new();
    for end in [
        0,
        PROGRAM,
        PROGRAM + 0x2000,
        KERNEL,
        KERNEL + 0x3000,
        LAST,
        LAST + 0x1000,
    ] {
        let beside = [0, 1, 3, 7, 8, 33, 0x80, 0xfff, 0x1000];
        let distance = random.pick(&beside);
        places.push((end + distance) & 0xffff_ffff);
        places.push(end.wrapping_sub(distance) & 0xffff_ffff);
    }
    for page in 0..7 {
        let place = page * 0x1000 + random.below(0x1000) as u64;
        places.extend([KERNEL + place, PROGRAM + place]);
    }
    places.push(random.next_u64() & 0xffff_ffff);
    places
}

fn memory_of(vcpu: &mut Computer<Bench>) -> Vec<u8> {
    let mut bytes = vec![0; 0x2_2000];
    assert!(vcpu.memory_mut().read(PhysicalAddress(DATA), &mut bytes));
    let mut low = vec![0; 0x2_0000];
    assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut low));
    // A processor may set A whether the access is made or not (SDM volume 3, 4.8), for example
    // where an operand is found to be misaligned.
    for entry in (TABLES as usize..TABLES as usize + 0x3000).step_by(4) {
        low[entry] &= !(A as u8);
    }
    bytes.extend(low);
    bytes
}

#[test]
fn every_form_of_access_ends_as_it_does_alone_and_reaches_nothing_else() {
    let mut random = Random::new(7);
    for (pae, user) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut guest = Guest {
            pae,
            user,
            write_protect: true,
        };
        let Some(base) = window_base(guest) else {
            skip::impossible("this process has no place for windows");
            return;
        };
        let canaries = [
            Canary::at(base - 0x1_0000 - CANARY_BYTES as u64),
            Canary::at(base + WINDOW + 0x1_0000),
        ];
        let (mut faults, mut ends) = (0, 0);
        for shape in SHAPES {
            for place in places(&mut random) {
                guest.write_protect = !random.one_in(4);
                let count = random.pick(&[1, 0, 8, 0x1000, 0xffff_ffff, 0x8000_0000]);
                let fs = random.pick(&[0, 0x10, 0xffff_fff0]);
                let set_up = |state: &mut CpuState| {
                    state.gpr[3] = place;
                    state.gpr[1] = count;
                    state.gpr[7] = if user { PROGRAM } else { KERNEL };
                    state.gpr[6] = state.gpr[7] + 0x800;
                    state.gpr[0] = 0x40;
                    state.segment_mut(SegmentRegister::Fs).base = fs;
                };
                let code = [shape, shape, &END].concat();
                let what = format!("{shape:x?} at {place:x}, {count:x}, {guest:?}");
                let mut alone = vcpu(guest, &code, set_up);
                alone.change_settings(|settings| settings.memory_access = MemoryAccess::Checked);
                let Some(expected) = (0..20_000).find_map(|_| alone.step_one().err()) else {
                    // The guest runs for too long, or has stored over its own code.
                    continue;
                };
                let mut reaching = direct(guest, &code, set_up);
                let stop = reaching.run();
                let has_ended = |stop: &VcpuStop| {
                    matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)))
                };
                assert_eq!(has_ended(&stop), has_ended(&expected), "{what}: {stop:?}");
                assert_eq!(reaching.dump(), alone.dump(), "{what}");
                assert_eq!(reaching.state().cr2, alone.state().cr2, "{what}");
                assert!(memory_of(&mut reaching) == memory_of(&mut alone), "{what}");
                faults += reaching.exit_counts().get(ExitKind::WindowFault);
                ends += 1;
            }
            assert!(canaries.iter().all(Canary::is_intact), "{shape:x?}");
        }
        assert!(ends > 500 && faults > 200, "{ends}, {faults}");
    }
}

#[test]
fn a_loop_over_a_page_faults_once() {
    for (pae, user) in [(false, false), (false, true), (true, false), (true, true)] {
        let guest = Guest {
            pae,
            user,
            write_protect: true,
        };
        // again: inc dword [ebx]; add ebx,4; loop again
        let code = [&[0xff, 0x03, 0x83, 0xc3, 0x04, 0xe2, 0xf9][..], &END].concat();
        let mut vcpu = direct(guest, &code, |state| {
            state.gpr[3] = if user { PROGRAM } else { KERNEL };
            state.gpr[1] = 0x400;
        });
        vcpu.run();
        assert_eq!(vcpu.state().gpr[1], 0, "{guest:?}");
        if window_base(guest).is_some() {
            assert_eq!(
                vcpu.exit_counts().get(ExitKind::WindowFault),
                1,
                "{guest:?}"
            );
        }
    }
}
