//! Tests accesses to display memory that is not RAM, without paging. Accesses made in translated
//! code have the results of the general path. Each program also runs instruction by instruction, by
//! the general path, and must have the same result. All emitted code is verified.

use crate::support::display::*;
use crate::support::fast_path_time::assert_timed_apart;
use tollgate_exits::ExitKind;
use tollgate_test_support::Computer;
use tollgate_x86::{Flags, Gpr};

/// Runs a real-mode program in blocks, and again instruction by instruction.
fn run(body: &[u8], rounds: u64) -> Computer<Display> {
    crate::support::display::run(GuestMode::Real, body, rounds)
}

#[test]
fn loads_and_stores_of_every_size_take_no_exit_once_each_was_made() {
    // mov al, [di]; mov [di+1], ah; mov bx, [di+2]; mov [di+4], dx; mov edx, [di+6]
    // mov [di+0ah], ebx; mov byte [di], 7; mov word [di+2], 1234h; mov ch, [300h]; mov ch, 0
    let body = [
        0x8a, 0x05, 0x88, 0x65, 0x01, 0x8b, 0x5d, 0x02, 0x89, 0x55, 0x04, 0x66, 0x8b, 0x55, 0x06,
        0x66, 0x89, 0x5d, 0x0a, 0xc6, 0x05, 0x07, 0xc7, 0x45, 0x02, 0x34, 0x12, 0x8a, 0x2e, 0x00,
        0x03, 0xb5, 0x00,
    ];
    let vcpu = run(&body, 200);
    assert_eq!(
        exits(&vcpu),
        [4, 5].map(|accesses| accesses * at_first(&vcpu))
    );
    let rounds = 200 - at_first(&vcpu);
    assert_eq!(fast_paths(&vcpu), [4 * rounds, 5 * rounds]);
    assert_timed_apart(&vcpu, &[ExitKind::MmioRead, ExitKind::MmioWrite]);
}

#[test]
fn single_string_instructions_advance_their_pointers() {
    // stosb; stosw; std; stosd; cld; lodsb; lodsw; addr32 lodsd
    let body = [
        0xaa, 0xab, 0xfd, 0x66, 0xab, 0xfc, 0xac, 0xad, 0x67, 0x66, 0xad,
    ];
    let vcpu = run(&body, 30);
    assert_eq!(fast_paths(&vcpu), [3 * 29, 3 * 29]);
    assert_timed_apart(&vcpu, &[ExitKind::MmioRead, ExitKind::MmioWrite]);
    // The pointers wrap at 64 KiB: DI goes from FFFEh to 1.
    let computer = run(&[0xbf, 0xfe, 0xff, 0xaa, 0xaa, 0xaa], 20);
    assert_eq!(computer.state().gpr[Gpr::Rdi as usize], 0x7777_0001);
    assert_eq!(fast_paths(&computer), [0, 3 * 19]);
}

#[test]
fn flags_and_other_registers_are_left_alone() {
    // add ah, ah; pushf; mov al, [si]; mov [si], bl; pushf; pop dx; pop di; xor dx, di; or bp, dx
    let body = [
        0x00, 0xe4, 0x9c, 0x8a, 0x04, 0x88, 0x1c, 0x9c, 0x5a, 0x5f, 0x31, 0xfa, 0x09, 0xd5,
    ];
    let code = [&[0x31, 0xed][..], &body].concat();
    let vcpu = run(&code, 50);
    assert_eq!(vcpu.state().gpr[Gpr::Rbp as usize] & 0xffff, 0);
    assert_eq!(exits(&vcpu), [at_first(&vcpu); 2]);
    assert!(!vcpu.state().flags().contains(Flags::TF));
}

#[test]
fn what_is_not_near_any_more_exits() {
    // mov al, cl; out 80h, al; mov [di], al: near in every other round
    let vcpu = run(&[0x88, 0xc8, 0xe6, 0x80, 0x88, 0x05], 100);
    let more = at_first(&vcpu) - 1;
    assert_eq!(exits(&vcpu), [0, 50 + more]);
    assert_eq!(fast_paths(&vcpu), [0, 50 - more]);
}

#[test]
fn an_access_across_pages_is_made_in_two_parts() {
    // mov di, 0fffh; mov [di], ax; mov di, 0ffeh; mov [di], ax
    let body = [0xbf, 0xff, 0x0f, 0x89, 0x05, 0xbf, 0xfe, 0x0f, 0x89, 0x05];
    let vcpu = run(&body, 10);
    let accesses = &vcpu.platform().accesses;
    assert_eq!(accesses.len(), 30);
    let expected = [(0xfff, 1), (0x1000, 1), (0xffe, 2)].map(|(at, size)| (WINDOW + at, size));
    assert_eq!(accesses[..3], expected);
    assert_eq!(exits(&vcpu), [0, 2 * at_first(&vcpu)]);
}

#[test]
fn requests_to_leave_lose_and_repeat_no_access() {
    // mov [di], al; mov al, [di]; inc di, from a loop of 30,000 rounds
    let body = [0x88, 0x05, 0x8a, 0x05, 0x47];
    let mut vcpu = computer(GuestMode::Real, &repeated(&body), 30_000);
    vcpu.run_kicked();
    assert!(vcpu.platform().ended);
    assert_eq!(vcpu.platform().accesses.len(), 60_000);
    assert_eq!(
        vcpu.state().gpr[Gpr::Rdi as usize] & 0xffff,
        (0x7777 + 30_000) & 0xffff
    );
}
