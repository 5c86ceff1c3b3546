//! Tests guests whose memory is in a snapshot's file until it is written: they must find the same
//! contents as guests with memory of their own, whether the guest or a device writes, and however
//! windows map the pages.

use crate::support::long_mode::{KERNEL, vcpu};
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::StopRequest;
use tollgate_test_support::{Random, restored};
use tollgate_tlb::shadow_windows::have_place;
use tollgate_x86::PhysicalAddress;

/// Physical address of the memory that the programs use: two large pages of the guest.
const USED: u64 = 0x40_0000;
/// The number of pages there.
const PAGES: usize = 1024;

/// The address of a random word in the used memory.
fn place(random: &mut Random) -> u64 {
    // Most accesses are to few pages, so that what was written is read again.
    let page = match random.below(3) {
        0 => random.below(PAGES),
        _ => random.below(24) * 41,
    };
    page as u64 * 4096 + 8 * random.below(512) as u64
}

/// What happens to the memory while the program has stopped.
enum Change {
    /// A device writes a word.
    Write(u64, u64),
    /// The guest gives pages back.
    Discard(u64, u64),
}

/// A program that adds words to RDX and stores RDX, with stops, and what changes at each stop.
fn program(random: &mut Random) -> (Vec<u8>, Vec<Change>) {
    // mov rbx,KERNEL+USED; xor edx,edx
    let mut code = vec![0x48, 0xbb];
    code.extend((KERNEL + USED).to_le_bytes());
    code.extend([0x31, 0xd2]);
    let mut changes = Vec::new();
    for _ in 0..400 {
        match random.below(8) {
            0 => {
                let at = place(random);
                changes.push(match random.below(3) {
                    0 => Change::Discard(at / 4096 * 4096, 4096 * (1 + random.below(40)) as u64),
                    _ => Change::Write(at, random.below(1 << 30) as u64),
                });
                // out 0xf4,al
                code.extend([0xe6, 0xf4]);
                continue;
            }
            // mov [rbx+displacement],rdx
            1 | 2 => code.extend([0x48, 0x89, 0x93]),
            // add rdx,[rbx+displacement]
            _ => code.extend([0x48, 0x03, 0x93]),
        }
        code.extend((place(random) as u32).to_le_bytes());
    }
    code.extend([0xe6, 0xf4]);
    (code, changes)
}

/// Runs a program to its end. Returns RDX, the contents of the memory, and the number of faults in
/// windows.
fn result(
    code: &[u8],
    changes: &[Change],
    access: MemoryAccess,
    prepare: impl Fn(&mut GuestMemory),
) -> (u64, Vec<u8>, u64) {
    let mut vcpu = vcpu(code, |_, memory| {
        for page in 0..PAGES as u64 {
            // Some pieces are zero, and so in no file.
            if page / 16 % 5 != 3 {
                let at = PhysicalAddress(USED + page * 4096);
                memory.write(at, &(page + 1).to_le_bytes().repeat(512));
            }
        }
        prepare(memory);
    });
    vcpu.change_settings(|settings| settings.memory_access = access);
    let mut changes = changes.iter();
    loop {
        let stop = vcpu.run();
        let is_end = matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)));
        assert!(is_end, "{stop:?}\n{}", vcpu.dump());
        let memory = vcpu.memory_mut();
        match changes.next() {
            Some(Change::Write(at, value)) => {
                assert!(memory.write_u64(PhysicalAddress(USED + at), *value));
            }
            Some(Change::Discard(at, bytes)) => {
                memory.discard(PhysicalAddress(USED + at), *bytes);
            }
            None => break,
        }
    }
    let mut bytes = vec![0; PAGES * 4096];
    assert!((vcpu.memory_mut()).read(PhysicalAddress(USED), &mut bytes));
    let faults = vcpu.exit_counts().get(ExitKind::WindowFault);
    (vcpu.state().gpr[2], bytes, faults)
}

#[test]
fn restored_memory_is_what_own_memory_would_be() {
    for seed in 1..=20 {
        let mut random = Random::new(seed);
        let (code, changes) = program(&mut random);
        let own = result(&code, &changes, MemoryAccess::Checked, |_| ());
        for access in [MemoryAccess::Checked, MemoryAccess::Direct] {
            let found = result(&code, &changes, access, |memory| {
                *memory = restored(memory).unwrap();
            });
            assert_eq!(own.0, found.0, "{seed}, {access:?}");
            assert!(own.1 == found.1, "{seed}, {access:?}");
            let has_windows = access == MemoryAccess::Direct && have_place();
            assert_eq!(found.2 > 0, has_windows, "{seed}, {access:?}");
        }
    }
}
