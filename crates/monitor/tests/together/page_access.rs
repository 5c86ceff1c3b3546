//! Tests which data accesses CR4.SMAP and protection keys allow: immediately after each change of
//! EFLAGS.AC and of PKRU, whatever was accessed before, in blocks and instruction by instruction.

use crate::support::long_mode::*;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_test_support::Computer;
use tollgate_x86::{AddedFeatures, CpuState, Cr0, Cr4, Flags, PhysicalAddress};

/// Bits of the error codes of page faults: a present page, a write, CPL 3, a protection key.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;
const KEY: u64 = 32;

/// Makes only the small pages user pages, which the supervisor must not access.
fn with_smap(state: &mut CpuState, memory: &mut GuestMemory) {
    with_small_pages(state, memory);
    only_small_pages_are_the_users(memory);
    state.added_features = AddedFeatures::SMAP;
    state.cr4 |= Cr4::SMAP.bits();
}

/// Gives the first small page key 5 and the second one key 0.
fn with_keys(state: &mut CpuState, memory: &mut GuestMemory) {
    with_small_pages(state, memory);
    let entry = memory.read_u64(PhysicalAddress(SMALL_TABLE));
    memory.write_u64(PhysicalAddress(SMALL_TABLE), entry | 5 << 59);
    state.added_features = AddedFeatures::PKU;
    state.cr4 |= Cr4::PKE.bits();
}

/// Makes only the small pages user pages with keys, so that handlers can use their stack whatever
/// PKRU is.
fn with_keys_in_small_pages(state: &mut CpuState, memory: &mut GuestMemory) {
    with_keys(state, memory);
    only_small_pages_are_the_users(memory);
}

fn only_small_pages_are_the_users(memory: &mut GuestMemory) {
    for page in 0..8 {
        memory.write_u64(PhysicalAddress(0x3000 + page * 8), page << 21 | 0x83);
    }
}

/// Makes the program run from the eighth small page, because [`CODE`] itself is in a supervisor
/// page.
fn place_program(state: &mut CpuState, memory: &mut GuestMemory) {
    memory.write_u64(PhysicalAddress(SMALL_TABLE + 7 * 8), CODE | 7);
    state.rip = SMALL + 0x7000;
}

fn with_keys_at_level_3(state: &mut CpuState, memory: &mut GuestMemory) {
    with_keys(state, memory);
    as_user(state);
}

/// The page fault that ended the program, and how often R12 was incremented before it.
fn fault(vcpu: &mut Computer<Bench>) -> (u64, u64) {
    let found = caught(vcpu);
    assert_eq!(found.vector, 14, "{found:?}");
    (found.error.unwrap_or_default(), vcpu.state().gpr[12])
}

/// Assembles `access` at the end of three rounds in which it is allowed, and of one in which it is
/// not.
macro_rules! rounds {
    ($name:ident, $allow:literal, $forbid:literal, $access:literal) => {
        guest_code!(
            $name,
            "mov rbx, 0x1000000",
            "mov r13, 3",
            "2:",
            $allow,
            $access,
            $forbid,
            "inc r12",
            "dec r13",
            "jnz 2b",
            $access,
            "inc r12",
            "out 0xf4, al",
        )
    };
}

#[test]
fn the_supervisor_accesses_pages_of_the_user_between_stac_and_clac_only() {
    let load = rounds!(smap_load, "stac", "clac", "mov rax, [rbx]");
    let store = rounds!(smap_store, "stac", "clac", "mov [rbx], rax");
    let push = rounds!(
        smap_push,
        "stac; mov r14, rsp; lea rsp, [rbx + 64]",
        "mov rsp, r14; clac",
        "push qword ptr [rbx]"
    );
    let change = rounds!(smap_change, "stac", "clac", "add dword ptr [rbx + 8], 3");
    let string = rounds!(
        smap_string,
        "stac; mov rdi, rbx; mov ecx, 100",
        "clac; mov rdi, rbx; mov ecx, 100",
        "rep stosb"
    );
    let vector = rounds!(smap_vector, "stac", "clac", "movups [rbx + 16], xmm0");
    for (code, error) in [
        (load, PRESENT),
        (store, PRESENT | WRITE),
        (push, PRESENT),
        (change, PRESENT | WRITE),
        (string, PRESENT | WRITE),
        (vector, PRESENT | WRITE),
    ] {
        let mut vcpu = run_with(code, with_smap);
        assert_eq!(fault(&mut vcpu), (error, 3));
    }
}

#[test]
fn popf_changes_access_as_stac_and_clac_do() {
    let code = rounds!(
        smap_popf,
        "push 0x40002; popfq",
        "push 2; popfq",
        "mov rax, [rbx + 4096]"
    );
    assert_eq!(fault(&mut run_with(code, with_smap)), (PRESENT, 3));
}

#[test]
fn smap_binds_from_the_load_of_cr4_on_and_no_longer() {
    let code = rounds!(
        smap_cr4,
        "mov rax, cr4; btr rax, 21; mov cr4, rax",
        "mov rax, cr4; bts rax, 21; mov cr4, rax",
        "mov [rbx], rbx"
    );
    assert_eq!(fault(&mut run_with(code, with_smap)), (PRESENT | WRITE, 3));
}

#[test]
fn smap_leaves_pages_of_the_supervisor_alone() {
    let code = guest_code!(
        smap_own,
        "mov rbx, 0x20000",
        "mov [rbx], rbx",
        "add [rbx], rbx",
        "push [rbx]",
        "pop r12",
        "out 0xf4, al",
    );
    let vcpu = run_with(code, with_smap);
    assert_eq!(vcpu.state().gpr[12], 0x40000);
}

/// Places the GDT at the end of a supervisor page, so that the descriptor of the handlers' code
/// segment is there, and the rest of the GDT in the first small page, which is a user page.
fn with_half_of_the_gdt(state: &mut CpuState, memory: &mut GuestMemory) {
    with_smap(state, memory);
    let old = state.gdtr.base;
    state.gdtr.base = SMALL - 0x10;
    for at in (0..=u64::from(state.gdtr.limit)).step_by(8) {
        let descriptor = memory.read_u64(PhysicalAddress(old + at));
        let place = match at {
            0 | 8 => SMALL - 0x10 + at,
            _ => small(at - 0x10).0,
        };
        memory.write_u64(PhysicalAddress(place), descriptor);
    }
}

#[test]
fn descriptors_in_pages_of_the_user_are_out_of_reach_whatever_ac_is() {
    // A data access to the descriptor's page is allowed before and after the fault.
    let load = guest_code!(
        smap_descriptor,
        "mov rbx, 0x1000000",
        "stac",
        "mov rax, [rbx]",
        "mov ecx, 0x10",
        "inc r12",
        "mov ds, ecx",
        "inc r12",
        "out 0xf4, al",
    );
    let rights = guest_code!(
        smap_rights,
        "mov rbx, 0x1000000",
        "stac",
        "mov rax, [rbx]",
        "mov ecx, 0x10",
        "inc r12",
        "lar edx, ecx",
        "inc r12",
        "out 0xf4, al",
    );
    for code in [load, rights] {
        let mut vcpu = run_with(code, with_half_of_the_gdt);
        assert_eq!(fault(&mut vcpu), (PRESENT, 1));
        assert_eq!(vcpu.state().cr2, SMALL);
        let free = run_with(code, |state, memory| {
            with_half_of_the_gdt(state, memory);
            state.cr4 &= !Cr4::SMAP.bits();
        });
        assert_eq!(free.state().gpr[12], 2);
    }
}

#[test]
fn programs_cannot_have_the_processor_read_descriptors_in_their_own_pages() {
    let code = guest_code!(
        smap_program,
        "mov rbx, 0x1000000",
        "mov rax, [rbx + 16]",
        "mov ecx, 0x23",
        "inc r12",
        "mov ds, ecx",
        "inc r12",
        "out 0xf4, al",
    );
    let mut vcpu = run_with(code, |state, memory| {
        with_half_of_the_gdt(state, memory);
        as_user(state);
        place_program(state, memory);
    });
    // An access that the processor itself makes is a supervisor access.
    assert_eq!(fault(&mut vcpu), (PRESENT, 1));
    assert_eq!(vcpu.state().cr2, SMALL + 0x10);
}

#[test]
fn a_fault_whose_gate_lies_in_a_page_of_the_user_is_a_triple_fault() {
    let code = guest_code!(smap_gate, "stac", "inc r12", "ud2");
    let mut vcpu = vcpu(code, |state, memory| {
        with_smap(state, memory);
        state.idtr.base = SMALL;
    });
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::TripleFault(_)), "{stop:?}");
    assert_eq!(vcpu.state().gpr[12], 1);
    // The gate of #DF was read last.
    assert_eq!(vcpu.state().cr2, SMALL + 8 * 16);
}

#[test]
fn the_kernel_does_not_reach_what_its_program_has_just_accessed() {
    let code = guest_code!(
        smap_kernel,
        "mov rbx, 0x1000000",
        "mov r13, 1000",
        "2:",
        "mov [rbx], r13",
        "mov rax, [rbx + 8]",
        "syscall",
        "dec r13",
        "jnz 2b",
        "mov edi, 1",
        "syscall",
        ".balign 64",
        "test edi, edi",
        "jnz 3f",
        "stac",
        "add [rbx + 8], r13",
        "clac",
        "inc r12",
        "sysretq",
        "3: mov rsi, [rbx + 8]",
        "inc r12",
        "out 0xf4, al",
    );
    let mut vcpu = run_with(code, |state, memory| {
        with_smap(state, memory);
        as_user(state);
        state.flags &= !0x3000;
        place_program(state, memory);
        state.star = 0x001b_0008 << 32;
        state.lstar = KERNEL + CODE + 64;
        state.sfmask = 0x25_7fd5;
        // System calls leave the stack unchanged; the fault's frame goes to a stack to which the
        // supervisor may store.
        state.gpr[4] = KERNEL_STACK;
    });
    assert_eq!(fault(&mut vcpu), (PRESENT, 1000));
    let sum = vcpu
        .memory_mut()
        .read_u64(PhysicalAddress(SMALL_RAM[0] + 8));
    assert_eq!(sum, 500_500);
}

#[test]
fn key_rights_hold_from_wrpkru_on_for_programs() {
    // Bits AD and WD of key 5.
    let load = rounds!(
        key_load,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 1 << 10; wrpkru",
        "mov rsi, [rbx]"
    );
    let store = rounds!(
        key_store,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 2 << 10; wrpkru; mov rsi, [rbx]",
        "mov [rbx], rsi"
    );
    let string = rounds!(
        key_string,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru; mov rdi, rbx; mov ecx, 9",
        "mov eax, 2 << 10; wrpkru; mov rdi, rbx; mov ecx, 9",
        "rep stosb"
    );
    for (code, error) in [
        (load, PRESENT | USER | KEY),
        (store, PRESENT | USER | WRITE | KEY),
        (string, PRESENT | USER | WRITE | KEY),
    ] {
        let mut vcpu = run_with(code, with_keys_at_level_3);
        assert_eq!(fault(&mut vcpu), (error, 3));
    }
}

#[test]
fn rights_of_key_0_hold_for_pages_without_another() {
    let store = rounds!(
        key_zero,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 2; wrpkru; mov rsi, [rbx + 4096]",
        "mov [rbx + 4096], rsi"
    );
    let load = rounds!(
        key_zero_load,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 1; wrpkru",
        "mov rsi, [rbx + 4096]"
    );
    for (code, error) in [(store, PRESENT | WRITE | KEY), (load, PRESENT | KEY)] {
        let mut vcpu = run_with(code, with_keys_in_small_pages);
        assert_eq!(fault(&mut vcpu), (error, 3));
        assert_eq!(vcpu.state().cr2, SMALL + 0x1000);
        let mut vcpu = run_with(code, |state, memory| {
            with_keys_in_small_pages(state, memory);
            as_user(state);
            place_program(state, memory);
        });
        assert_eq!(fault(&mut vcpu), (error | USER, 3));
        assert_eq!(vcpu.state().cr2, SMALL + 0x1000);
    }
}

#[test]
fn a_handlers_frame_needs_the_rights_of_its_page() {
    // The stack of CPL 0 is in a user page, which has key 0.
    let code = guest_code!(
        key_frame,
        "xor ecx, ecx",
        "xor edx, edx",
        "mov eax, 2",
        "wrpkru",
        "inc r12",
        "ud2",
    );
    let mut vcpu = vcpu(code, with_keys);
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::TripleFault(_)), "{stop:?}");
    assert_eq!(vcpu.state().gpr[12], 1);
    assert_eq!(vcpu.state().cr2 >> 12, (STACK - 8) >> 12);
}

#[test]
fn write_rights_bind_the_supervisor_only_with_cr0_wp() {
    let code = rounds!(
        key_supervisor,
        "xor eax, eax; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 2 << 10; wrpkru",
        "mov [rbx], rsi"
    );
    let expected = (PRESENT | WRITE | KEY, 3);
    assert_eq!(fault(&mut run_with(code, with_keys)), expected);
    let free = run_with(code, |state, memory| {
        with_keys(state, memory);
        state.cr0 &= !Cr0::WP.bits();
    });
    assert_eq!(free.state().gpr[12], 4);
}

/// Makes the first small page a supervisor page with key 5.
fn with_supervisor_keys(state: &mut CpuState, memory: &mut GuestMemory) {
    with_small_pages(state, memory);
    let entry = memory.read_u64(PhysicalAddress(SMALL_TABLE));
    memory.write_u64(PhysicalAddress(SMALL_TABLE), entry & !4 | 5 << 59);
    state.added_features = AddedFeatures::PKS;
    state.cr4 |= Cr4::PKS.bits();
}

#[test]
fn rights_of_the_supervisor_s_keys_hold_from_wrmsr_on() {
    // Bits AD and WD of key 5, in IA32_PKRS.
    let load = rounds!(
        pkrs_load,
        "xor eax, eax; mov ecx, 0x6e1; xor edx, edx; wrmsr",
        "mov eax, 1 << 10; wrmsr",
        "mov rsi, [rbx]"
    );
    let store = rounds!(
        pkrs_store,
        "xor eax, eax; mov ecx, 0x6e1; xor edx, edx; wrmsr",
        "mov eax, 2 << 10; wrmsr; mov rsi, [rbx]; rdmsr",
        "mov [rbx], rax"
    );
    for (code, error) in [(load, PRESENT | KEY), (store, PRESENT | WRITE | KEY)] {
        let mut vcpu = run_with(code, with_supervisor_keys);
        assert_eq!(fault(&mut vcpu), (error, 3));
        let free = run_with(code, |state, memory| {
            with_supervisor_keys(state, memory);
            state.cr4 &= !Cr4::PKS.bits();
        });
        assert_eq!(free.state().gpr[12], 4, "without CR4.PKS");
    }
    let free = run_with(store, |state, memory| {
        with_supervisor_keys(state, memory);
        state.cr0 &= !Cr0::WP.bits();
    });
    assert_eq!(free.state().gpr[12], 4, "without CR0.WP");
}

#[test]
fn the_register_of_the_supervisor_s_keys_is_there_where_they_are_and_has_32_bits() {
    let wide = guest_code!(pkrs_wide, "mov ecx, 0x6e1", "mov edx, 1", "wrmsr");
    let mut vcpu = run_with(wide, with_supervisor_keys);
    assert_eq!(caught(&mut vcpu).vector, 13);
    let read = guest_code!(pkrs_read, "mov ecx, 0x6e1", "rdmsr", "out 0xf4, al");
    let vcpu = run_with(read, with_supervisor_keys);
    assert_eq!(vcpu.state().gpr[0], 0);
    let mut vcpu = run_with(read, |state, memory| {
        with_supervisor_keys(state, memory);
        state.added_features = AddedFeatures::empty();
        state.cr4 &= !Cr4::PKS.bits();
    });
    assert_eq!(caught(&mut vcpu).vector, 13);
}

#[test]
fn xrstor_loads_key_rights_and_xsave_stores_them() {
    let code = guest_code!(
        key_images,
        "mov rbx, 0x1000000",
        "mov rdi, 0x20000",
        "mov rsi, [rbx]",
        // WD of key 5 is saved in an image, and restored over full rights.
        "mov eax, 2 << 10; xor ecx, ecx; xor edx, edx; wrpkru",
        "mov eax, 1 << 9; xsave [rdi]",
        "xor eax, eax; wrpkru",
        "mov [rbx], rsi",
        "inc r12",
        "mov eax, 1 << 9; xrstor [rdi]",
        "rdpkru",
        "mov r15, rax",
        "mov [rbx], rsi",
        "inc r12",
        "out 0xf4, al",
    );
    let mut vcpu = run_with(code, |state, memory| {
        with_keys_at_level_3(state, memory);
        state.xcr0 |= 1 << 9;
    });
    assert_eq!(fault(&mut vcpu), (PRESENT | USER | WRITE | KEY, 1));
    assert_eq!(vcpu.state().gpr[15], 2 << 10);
    assert_eq!(vcpu.state().flags() & Flags::VM, Flags::empty());
}
