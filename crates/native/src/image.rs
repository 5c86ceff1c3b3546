//! The executable file of a space process: one page with the head of an ELF file, the stub, the
//! list of system calls that it makes first, and the structures that these read.

use crate::filters;
use crate::frame::{SIGNALS, Signal};
use crate::layout::{
    ANNOUNCE, BYTES, CODE, CONTROL, LIST, Layout, PAGE, STACK, STRUCTURES, USER_END, announce,
};
use crate::stub::stub;

/// What a program's CPUID or RDTSC does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Instruction {
    /// It runs on the processor.
    #[default]
    Runs,
    /// It leaves native code with #GP, if the host can do that ([`crate::Facts`]).
    Faults,
}

/// `SS_AUTODISARM`: the signal stack is used from its top even if RSP points into it.
pub const SIGNAL_STACK_FLAGS: u32 = 1 << 31;
const SA_RESTORER: u64 = 0x0400_0000;
const SECCOMP_FILTER: u64 = 1;
/// Does not switch on mitigations that cost the program speed on older kernels.
const SECCOMP_SPEC_ALLOW: u64 = 4;
/// `PR_SET_SYSCALL_USER_DISPATCH`.
const USER_DISPATCH: u64 = 59;
const ARCH_SET_CPUID: u64 = 0x1012;
/// Entry of the list that creates the mapper; its end.
const CLONE: u64 = -1i64 as u64;
const END: u64 = -2i64 as u64;

/// A page in which structures are placed one after the other.
struct Page {
    bytes: Vec<u8>,
    place: u64,
    next: usize,
}

impl Page {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds a structure and returns its address in the process.
    fn add(&mut self, bytes: &[u8]) -> u64 {
        let offset = self.next;
        self.next += bytes.len().next_multiple_of(8);
        assert!(self.next <= BYTES as usize, "the stub's page is full");
        self.put(offset as u64, bytes);
        self.place + offset as u64
    }

    fn add_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.add(&bytes)
    }

    /// Adds a filter and the structure that leads to it.
    fn add_filter(&mut self, filter: &[[u8; 8]]) -> u64 {
        let instructions = self.add(filter.as_flattened());
        self.add_words(&[filter.len() as u64, instructions])
    }
}

/// The contents of the executable file.
pub fn image(layout: Layout, cpuid: Instruction, tsc: Instruction) -> Vec<u8> {
    let stub = stub();
    let mut page = Page {
        bytes: vec![0; PAGE as usize],
        place: layout.place,
        next: STRUCTURES as usize,
    };
    assert!(
        CODE as usize + stub.code.len() <= LIST as usize,
        "the stub is too long"
    );
    page.put(0, &head(layout.place, stub.start));
    page.put(CODE, stub.code);
    let bytes: Vec<u8> = (0..=255).collect();
    page.put(BYTES, &bytes);
    let list = start_list(&mut page, layout, cpuid, tsc);
    assert!(
        LIST as usize + list.len() * 64 <= STRUCTURES as usize,
        "the stub's list is too long"
    );
    for (index, entry) in list.iter().enumerate() {
        let bytes: Vec<u8> = entry.iter().flat_map(|word| word.to_le_bytes()).collect();
        page.put(LIST + index as u64 * 64, &bytes);
    }
    page.bytes
}

/// The system calls from the process's first instruction to the first signal.
fn start_list(
    page: &mut Page,
    layout: Layout,
    cpuid: Instruction,
    tsc: Instruction,
) -> Vec<[u64; 8]> {
    let stub = stub();
    let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let read = libc::PROT_READ as u64;
    let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let reserved = layout.reserved();
    let call = |number: libc::c_long, arguments: &[u64]| {
        let mut entry = [0; 8];
        entry[0] = number as u64;
        entry[1..=arguments.len()].copy_from_slice(arguments);
        entry
    };
    let words_end = layout.place + ANNOUNCE;
    let mut list = vec![
        call(
            libc::SYS_mmap,
            &[
                layout.place + CONTROL,
                ANNOUNCE - CONTROL,
                read,
                shared,
                2,
                0,
            ],
        ),
        call(
            libc::SYS_mmap,
            &[
                words_end,
                reserved.end - words_end,
                write,
                shared,
                2,
                ANNOUNCE - CONTROL,
            ],
        ),
        call(libc::SYS_close, &[2]),
        // The stack, the vDSO and its data.
        call(libc::SYS_munmap, &[0, layout.place]),
        call(libc::SYS_munmap, &[reserved.end, USER_END - reserved.end]),
        call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1]),
    ];
    let name = page.add(b"guest-program\0");
    list.push(call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]));
    let done = layout.announce(announce::DONE);
    list.push(call(libc::SYS_set_tid_address, &[done]));
    let stack = page.add_words(&[
        layout.place + STACK,
        u64::from(SIGNAL_STACK_FLAGS),
        layout.stack_pages * PAGE,
    ]);
    list.push(call(libc::SYS_sigaltstack, &[stack, 0]));
    let flags = (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64 | SA_RESTORER;
    let action = page.add_words(&[
        layout.place + stub.handler,
        flags,
        layout.place + stub.returned,
        u64::MAX,
    ]);
    for Signal { number, .. } in SIGNALS {
        list.push(call(libc::SYS_rt_sigaction, &[number as u64, action, 0, 8]));
    }
    if cpuid == Instruction::Faults {
        let mut entry = call(libc::SYS_arch_prctl, &[ARCH_SET_CPUID, 0]);
        entry[7] = layout.announce(announce::CPUID_RESULT);
        list.push(entry);
    }
    if tsc == Instruction::Faults {
        let arguments = [libc::PR_SET_TSC as u64, libc::PR_TSC_SIGSEGV as u64];
        let mut entry = call(libc::SYS_prctl, &arguments);
        entry[7] = layout.announce(announce::TSC_RESULT);
        list.push(entry);
    }
    let mapper = page.add_filter(&filters::mapper(layout));
    let runner = page.add_filter(&filters::runner(layout, &stub));
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let mapper_number = layout.announce(announce::MAPPER);
    let mut clone = call(0, &[flags as u64, 0, mapper_number, done]);
    clone[0] = CLONE;
    list.push(clone);
    // The mapper makes the first of these calls; the runner steps over it and makes the others.
    let filter = |program| {
        let arguments = [SECCOMP_FILTER, SECCOMP_SPEC_ALLOW, program];
        call(libc::SYS_seccomp, &arguments)
    };
    let nothing = page.add_words(&[0]);
    let unblock = [libc::SIG_SETMASK as u64, nothing, 0, 8];
    list.push(filter(mapper));
    list.push(call(libc::SYS_rt_sigprocmask, &unblock));
    // System call user dispatch comes before seccomp: calls from outside the stub are signals. The
    // filter would do that for all except the two calls of Linux' uprobes, which no filter stops.
    let dispatch = [USER_DISPATCH, 1, layout.place, PAGE, 0];
    list.push(call(libc::SYS_prctl, &dispatch));
    list.push(filter(runner));
    let mut end = call(0, &[]);
    end[0] = END;
    list.push(end);
    list
}

/// The head of a static executable of 64 bits with one segment, which starts at this offset.
fn head(place: u64, start: u64) -> Vec<u8> {
    const SEGMENTS: u16 = 2;
    let mut head = Vec::new();
    head.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable, for x86-64, version 1.
    head.extend(2u16.to_le_bytes());
    head.extend(62u16.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    // The entry point; where program headers are; no sections; no flags.
    head.extend((place + start).to_le_bytes());
    head.extend(64u64.to_le_bytes());
    head.extend(0u64.to_le_bytes());
    head.extend(0u32.to_le_bytes());
    // Sizes of this head and of a program header, and how many of these there are.
    for half in [64, 56, SEGMENTS, 0, 0, 0] {
        head.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable: offset, two addresses, two sizes, alignment.
    head.extend(1u32.to_le_bytes());
    head.extend(5u32.to_le_bytes());
    for word in [0, place, place, PAGE, PAGE, PAGE] {
        head.extend(word.to_le_bytes());
    }
    // PT_GNU_STACK, not executable.
    head.extend(0x6474_e551u32.to_le_bytes());
    head.extend(6u32.to_le_bytes());
    head.extend([0; 48]);
    head
}
