//! Tests accesses to display memory that is not RAM, with paging. Accesses made in translated code
//! have the results of the general path, at the place to which the guest's tables lead at that
//! moment and with the rights that they give. Each program also runs instruction by instruction, by
//! the general path, and must have the same result. All emitted code is verified.

use crate::support::display::code::{At::*, Code};
use crate::support::display::*;
use tollgate_x86::{Gpr, PhysicalAddress};

const MOV_TO: &[u8] = &[0x88];
const MOV_FROM: &[u8] = &[0x8a];

#[test]
fn loads_and_stores_take_no_exit_once_each_was_made() {
    for mode in GuestMode::PAGED {
        // mov al, [si]; mov [di], al; mov dx, [si+1]; mov [di+1], bx; mov ebx, [si+5]
        // mov [di+5], edx; mov byte [di], 7
        let body = Code::new(mode)
            .memory(1, MOV_FROM, 0, Source, 0)
            .memory(1, MOV_TO, 0, Destination, 0)
            .memory(2, MOV_FROM, 2, Source, 1)
            .memory(2, MOV_TO, 3, Destination, 1)
            .memory(4, MOV_FROM, 3, Source, 5)
            .memory(4, MOV_TO, 2, Destination, 5)
            .memory(1, &[0xc6], 0, Destination, 0)
            .plain(&[7]);
        let vcpu = run(mode, &body.bytes, 200);
        let at_first = at_first(&vcpu);
        assert_eq!(exits(&vcpu), [3 * at_first, 4 * at_first], "{mode:?}");
        let rounds = 200 - at_first;
        assert_eq!(fast_paths(&vcpu), [3 * rounds, 4 * rounds], "{mode:?}");
    }
}

/// The address of the page-table entry of a page of [`ALIAS`], by the number of the page.
fn entry(mode: GuestMode, number: u64) -> u64 {
    PAGE_TABLE + ((ALIAS >> 12) + number) * mode.entry_bytes()
}

/// xor dword [place], value
fn xor_entry(mode: GuestMode, place: u64, value: u32) -> Vec<u8> {
    let operand: &[u8] = if mode.is_long() {
        &[0x34, 0x25]
    } else {
        &[0x35]
    };
    [
        &[0x81],
        operand,
        &(place as u32).to_le_bytes(),
        &value.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn what_a_page_leads_to_is_something_else_once_the_guest_has_said_so() {
    const RAM: u64 = 0x9000;
    // invlpg [edi]; mov ebx, cr3; mov cr3, ebx
    for change in [
        &[0x0f, 0x01, 0x3f][..],
        &[0x0f, 0x20, 0xdb, 0x0f, 0x22, 0xdb],
    ] {
        for mode in [GuestMode::Paged, GuestMode::Long] {
            // mov [edi], al; inc eax; add dl, [edi+1]; the page is RAM, the display, RAM ...
            let toggle = xor_entry(mode, entry(mode, 0), (WINDOW ^ RAM) as u32);
            let body = Code::new(mode)
                .memory(1, MOV_TO, 0, Destination, 0)
                .plain(&[0x83, 0xc0, 0x01])
                .memory(1, MOV_FROM, 2, Destination, 1)
                .plain(&toggle)
                .plain(change);
            let vcpu = run_with(mode, &repeated(&body.bytes), 100, |state, _| {
                state.gpr[Gpr::Rdi as usize] = ALIAS;
            });
            assert_eq!(vcpu.platform().accesses.len(), 100, "{mode:?}");
            let exits: u64 = exits(&vcpu).iter().sum();
            assert_eq!(exits, 2 * at_first(&vcpu), "{mode:?}");
        }
    }
}

#[test]
fn an_instruction_that_meets_ram_and_the_display_reaches_both() {
    for mode in [
        GuestMode::Paged,
        GuestMode::User,
        GuestMode::Long,
        GuestMode::LongUser,
    ] {
        // mov [edi], ax; mov bx, [edi+20h]; add edi, 80h: from RAM through the display to RAM
        let body = Code::new(mode)
            .memory(2, MOV_TO, 0, Destination, 0)
            .memory(2, MOV_FROM, 3, Destination, 0x20)
            .plain(&[0x81, 0xc7, 0x80, 0, 0, 0]);
        let rounds = (ALIASES + 4) << 12 >> 7;
        let vcpu = run_with(mode, &repeated(&body.bytes), rounds, |state, _| {
            state.gpr[Gpr::Rdi as usize] = ALIAS - 0x2000;
        });
        let of_display = ALIASES << 12 >> 7;
        assert_eq!(vcpu.platform().accesses.len() as u64, 2 * of_display);
        let exits: u64 = exits(&vcpu).iter().sum();
        assert!(exits <= 4, "{mode:?}: {exits}");
    }
}

#[test]
fn rights_that_the_tables_do_not_give_are_a_fault_at_the_instruction() {
    const READ_ONLY: u64 = 2;
    const SUPERVISOR: u64 = 4;
    const NOT_PRESENT: u64 = 1;
    for (modes, taken) in [
        (&GuestMode::PAGED[1..], READ_ONLY),
        (&[GuestMode::User, GuestMode::LongUser][..], SUPERVISOR),
        (&GuestMode::PAGED[1..], NOT_PRESENT),
    ] {
        for &mode in modes {
            // mov [edi], al; add edi, 400h; until a page lacks the right
            let body = Code::new(mode)
                .memory(1, MOV_TO, 0, Destination, 0)
                .plain(&[0x81, 0xc7, 0, 4, 0, 0]);
            let vcpu = run_with(mode, &repeated(&body.bytes), 100, |state, memory| {
                state.gpr[Gpr::Rdi as usize] = ALIAS;
                let place = entry(mode, 3);
                let value = memory.read_u64(PhysicalAddress(place));
                memory.write_u64(PhysicalAddress(place), value & !taken);
            });
            assert!(!vcpu.platform().ended);
            assert_eq!(vcpu.state().cr2, ALIAS + 0x3000, "{mode:?}");
            assert_eq!(vcpu.platform().accesses.len(), 12);
            assert_eq!(exits(&vcpu), [0, at_first(&vcpu)], "{mode:?}");
        }
    }
}

#[test]
fn a_page_of_registers_that_is_known_gives_stores_to_the_display_no_right() {
    for mode in [GuestMode::Paged, GuestMode::Long] {
        // mov eax, [esi]: the page of registers; mov [edi], eax; add edi, 800h: up to that page
        let body = Code::new(mode)
            .memory(4, MOV_FROM, 0, Source, 0)
            .memory(4, MOV_TO, 0, Destination, 0)
            .plain(&[0x81, 0xc7, 0, 8, 0, 0]);
        let vcpu = run_with(mode, &repeated(&body.bytes), 100, |state, memory| {
            state.gpr[Gpr::Rdi as usize] = ALIAS;
            state.gpr[Gpr::Rsi as usize] = ALIAS + (ALIASES << 12);
            let place = PhysicalAddress(entry(mode, ALIASES));
            let bytes = (NEAR_PAGE | 5).to_le_bytes();
            memory.write(place, &bytes[..mode.entry_bytes() as usize]);
        });
        assert_eq!(vcpu.state().cr2, ALIAS + (ALIASES << 12), "{mode:?}");
        assert_eq!(exits(&vcpu), [at_first(&vcpu); 2], "{mode:?}");
    }
}

#[test]
fn the_accessed_and_the_dirty_bit_are_set_as_by_any_access() {
    for mode in &GuestMode::PAGED[1..] {
        let mode = *mode;
        // mov bl, [edi]; add edi, 1000h: A alone; then stores: D too
        let load = Code::new(mode)
            .memory(1, MOV_FROM, 3, Destination, 0)
            .plain(&[0x81, 0xc7, 0, 0x10, 0, 0]);
        let store = Code::new(mode).plain(&[0x81, 0xef, 0, 0x10, 0, 0]).memory(
            1,
            MOV_TO,
            3,
            Destination,
            0,
        );
        let code = [
            &load.bytes[..],
            &[0xe2, (load.bytes.len() as u8 + 2).wrapping_neg()],
            &[0xb9, 3, 0, 0, 0],
            &repeated(&store.bytes),
        ]
        .concat();
        let mut vcpu = run_with(mode, &code, 4, |state, _| {
            state.gpr[Gpr::Rdi as usize] = ALIAS;
        });
        let bits = [0, 1, 2, 3].map(|number| {
            let place = PhysicalAddress(entry(mode, number));
            vcpu.memory_mut().read_u64(place) & 0x60
        });
        assert_eq!(bits, [0x20, 0x60, 0x60, 0x60], "{mode:?}");
    }
}

#[test]
fn what_is_not_near_any_more_exits() {
    for mode in GuestMode::PAGED {
        // mov al, cl; out 80h, al; mov [di], al: near in every other round
        let body =
            Code::new(mode)
                .plain(&[0x88, 0xc8, 0xe6, 0x80])
                .memory(1, MOV_TO, 0, Destination, 0);
        let vcpu = run(mode, &body.bytes, 100);
        let more = at_first(&vcpu) - 1;
        assert_eq!(exits(&vcpu), [0, 50 + more], "{mode:?}");
        assert_eq!(fast_paths(&vcpu), [0, 50 - more], "{mode:?}");
    }
}

#[test]
fn requests_to_leave_lose_and_repeat_no_access() {
    for mode in GuestMode::PAGED {
        // mov [di], al; mov al, [di]; from a loop of 10,000 rounds
        let body = Code::new(mode).memory(1, MOV_TO, 0, Destination, 0).memory(
            1,
            MOV_FROM,
            0,
            Destination,
            0,
        );
        let mut vcpu = computer(mode, &repeated(&body.bytes), 10_000);
        vcpu.run_kicked();
        assert!(vcpu.platform().ended);
        assert_eq!(vcpu.platform().accesses.len(), 20_000);
    }
}
