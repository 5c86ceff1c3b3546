//! Tests that the guest's x87, SSE and AVX registers, their settings and pointers survive
//! everything that the monitor does for an instruction that does not name them, whether or not they
//! were in the host's registers at that moment. All emitted code is verified.

use crate::support::every_shape::machine::{Machine, vcpu};
use crate::support::every_shape::{EXIT, Guest, HANDLER, INTERRUPT_TABLE, Scene, guests, put};
use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind};
use std::collections::HashSet;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_test_support::{Computer, visible_vectors};
use tollgate_x86::Flags;

/// movaps xmm0, xmm0: needs the registers and changes none.
const TOUCH: [u8; 3] = [0x0f, 0x28, 0xc0];
const OUT: [u8; 2] = EXIT;

/// Whether an instruction names a vector register, an image of them, or their settings.
fn is_vector(instruction: &Instruction) -> bool {
    use CpuidFeature::*;
    let names = (0..instruction.op_count()).any(|index| {
        let register = instruction.op_register(index);
        instruction.op_kind(index) == OpKind::Register
            && (register.is_vector_register()
                || register.is_k()
                || register.is_mm()
                || register.is_st())
    });
    let general = |feature: &CpuidFeature| {
        matches!(
            feature,
            FPU | FPU287 | FPU387 | MMX | FXSR | XSAVE | XSAVEOPT | SSE | SSE3 | AVX
        )
    };
    let prefetches = matches!(
        instruction.mnemonic(),
        Mnemonic::Prefetcht0 | Mnemonic::Prefetchnta | Mnemonic::Sfence | Mnemonic::Xgetbv
    );
    names || !prefetches && instruction.cpuid_features().iter().any(general)
}

/// The guest's registers at the end.
fn end(vcpu: &mut Computer<Machine>, what: &str) -> Vec<u8> {
    vcpu.platform_mut().begin();
    let stop = vcpu.run();
    assert!(vcpu.platform().ended, "{what}: {stop:?}");
    visible_vectors(&vcpu.state().vector)
}

fn check(vcpu: &mut Computer<Machine>, guest: &Guest, what: &str) {
    let found = end(vcpu, what);
    let expected = visible_vectors(&guest.state.vector);
    let differs = |at: &usize| found[*at] != expected[*at];
    let differences: Vec<usize> = (0..found.len()).filter(differs).collect();
    assert!(
        differences.is_empty(),
        "{what}: the save area differs at {differences:?}"
    );
}

/// Whether the guest runs to its end; a guest that does not proves nothing.
fn ends(guest: &Guest) -> bool {
    let mut vcpu = vcpu(guest);
    let stops = (0..60).any(|_| vcpu.step_one().is_err());
    stops && vcpu.platform().ended
}

/// The guest with an instruction before its code that needs the registers.
fn touching(guest: &Guest) -> Guest {
    let mut guest = guest.clone();
    guest.code = [&TOUCH[..], &guest.code].concat();
    put(&mut guest.memory, guest.eip, &guest.code);
    guest
}

#[test]
fn vector_registers_survive_every_instruction_that_does_not_name_them() {
    let (mut kinds, mut count) = (HashSet::new(), 0);
    for mut guest in guests() {
        let task_switched = guest.state.cr0 & 8 != 0;
        let names = guest.instructions().iter().any(is_vector);
        if task_switched || names || guest.scene == Scene::Trapping || !ends(&guest) {
            continue;
        }
        // The handler needs the registers, too.
        put(&mut guest.memory, HANDLER, &[&TOUCH[..], &OUT].concat());
        for live in [false, true] {
            let guest = if live {
                touching(&guest)
            } else {
                guest.clone()
            };
            let mut vcpu = vcpu(&guest);
            check(&mut vcpu, &guest, &format!("{} live: {live}", guest.name));
            count += 1;
            let counts = vcpu.exit_counts();
            let seen = ExitKind::ALL.iter().filter(|kind| counts.get(**kind) != 0);
            kinds.extend(seen.copied().filter(|_| live));
            // Most misses take no exit, even with live registers.
            let misses = [
                (FastPath::ReadMiss, ExitKind::TlbMissRead),
                (FastPath::WriteMiss, ExitKind::TlbMissWrite),
            ];
            let filled = misses
                .iter()
                .filter(|it| vcpu.counts().fast_path(it.0) != 0);
            kinds.extend(filled.map(|it| it.1).filter(|_| live));
        }
    }
    assert!(count > 2000, "only {count}");
    use ExitKind::*;
    let expected = [
        TlbMissRead,
        TlbMissWrite,
        SlowAccess,
        CodeWrite,
        MmioRead,
        MmioWrite,
        PortIn,
        PortOut,
        Cli,
        Sti,
        Pushf,
        Popf,
        Iret,
        SoftwareInterrupt,
        FastSystemCall,
        FarTransfer,
        SegmentLoad,
        Cr3Load,
        ControlRegister,
        Invlpg,
        Msr,
        Cpuid,
        StringInstruction,
        OtherInstruction,
        LinkMiss,
        IndirectMiss,
        GuestException,
        HostFault,
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|kind| !kinds.contains(kind))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

/// A guest of 32-bit code like the first one of the golden files, with other code and a handler for
/// one vector.
fn with_handler(code: &[u8], vector: u32, handler: &[u8]) -> Guest {
    const AT: u32 = HANDLER + 0x100;
    let mut guest = guests()
        .into_iter()
        .find(|guest| guest.name.starts_with("flat32: 8B4308 Data"))
        .unwrap();
    guest.code = [code, &OUT].concat();
    put(&mut guest.memory, guest.eip, &guest.code);
    put(&mut guest.memory, AT, handler);
    let gate = u64::from(AT) | 0x10 << 16 | 0xee00 << 32;
    put(
        &mut guest.memory,
        INTERRUPT_TABLE + 8 * vector,
        &gate.to_le_bytes(),
    );
    guest
}

#[test]
fn vector_registers_survive_faults_that_are_resumed() {
    // The handlers need the registers as well, or do not.
    for handler_touches in [false, true] {
        let touch: &[u8] = if handler_touches { &TOUCH } else { &[] };
        // div ecx, which is zero until the handler says otherwise: inc ecx; iret
        let divide = [&TOUCH[..], &[0x31, 0xd2, 0x31, 0xc9, 0xf7, 0xf1], &TOUCH].concat();
        let repair = [touch, &[0x41], touch, &[0xcf]].concat();
        let guest = with_handler(&divide, 0, &repair);
        let mut machine = vcpu(&guest);
        check(&mut machine, &guest, "#DE");
        assert_eq!(machine.state().gpr[1], 1);
        // ud2, which the handler steps over: add dword [esp], 2; iret
        let undefined = [&TOUCH[..], &[0x0f, 0x0b], &TOUCH].concat();
        let skip = [touch, &[0x83, 0x04, 0x24, 2], touch, &[0xcf]].concat();
        let guest = with_handler(&undefined, 6, &skip);
        check(&mut vcpu(&guest), &guest, "#UD");
        // mov eax, [fs:0] with an unusable FS, the same: the error code lies above. Its
        // 6 bytes are stepped over: add dword [esp+4], 6; add esp, 4; iret
        let general = [&TOUCH[..], &[0x64, 0xa1, 0, 0, 0, 0], &TOUCH].concat();
        let skip = [touch, &[0x83, 0x44, 0x24, 4, 6, 0x83, 0xc4, 4, 0xcf]].concat();
        let mut guest = with_handler(&general, 13, &skip);
        guest.state.segments[4] = tollgate_x86::Segment::default();
        check(&mut vcpu(&guest), &guest, "#GP");
    }
}

#[test]
fn vector_registers_survive_interrupts_halts_and_hypercalls() {
    for handler_touches in [false, true] {
        let touch: &[u8] = if handler_touches { &TOUCH } else { &[] };
        let handler = [touch, &[0xcf]].concat();
        for code in [
            // sti; nop; nop
            &[0xfb, 0x90, 0x90][..],
            // sti; hlt
            &[0xfb, 0xf4],
            // mov eax, the null call; vmcall; mov eax, the version call; vmmcall
            &[
                0xb8, 0x00, 0x4c, 0x4f, 0x54, 0x0f, 0x01, 0xc1, 0xb8, 0x01, 0x4c, 0x4f, 0x54, 0x0f,
                0x01, 0xd9,
            ],
        ] {
            for live in [false, true] {
                let before: &[u8] = if live { &TOUCH } else { &[] };
                let code = [before, code, &TOUCH].concat();
                let guest = with_handler(&code, 0x20, &handler);
                let mut vcpu = vcpu(&guest);
                let interrupts = u32::from(code.contains(&0xfb));
                vcpu.platform_mut().interrupts = interrupts;
                check(&mut vcpu, &guest, &format!("{code:x?}"));
                assert_eq!(vcpu.platform().interrupts, 0);
                let delivered = vcpu.exit_counts().get(ExitKind::InterruptDelivered);
                assert_eq!(delivered, u64::from(interrupts));
            }
        }
    }
}

#[test]
fn a_processor_begins_with_all_flags_and_x87_pointers_of_its_state() {
    let guest = with_handler(&TOUCH, 0x20, &[0xcf]);
    let flags = guest.state.flags | Flags::DF.bits();
    let mut guest = guest;
    guest.state.flags = flags;
    let mut machine = vcpu(&guest);
    check(&mut machine, &guest, "at first");
    assert_eq!(machine.state().flags, flags);
    // The registers must also survive when the processor is given another state.
    let mut other = guest.state.clone();
    other.vector.0[8] ^= 0xff;
    machine.change_state(|cpu| *cpu = other.clone());
    *machine.platform_mut() = Machine::default();
    assert_eq!(end(&mut machine, "changed"), visible_vectors(&other.vector));
}

#[test]
fn fninit_clears_all_x87_pointers() {
    // fld dword [ebx]; fninit; and what needs the registers
    let guest = with_handler(&[0xd9, 0x03, 0xdb, 0xe3, 0x0f, 0x28, 0xc0], 0x20, &[0xcf]);
    let found = end(&mut vcpu(&guest), "fninit");
    assert_eq!(found[6..24], [0; 18]);
}
