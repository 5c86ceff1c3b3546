//! x87 and vector registers, which stay where the kernel stored them.

use crate::support::Guest;

/// Offsets in XSAVE's standard form (SDM volume 1, 13.4).
const MXCSR: usize = 24;
const XMM: usize = 160;
const XSTATE_BV: usize = 512;
const AVX: u64 = 1 << 2;

fn vectors(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; guest.process.vectors().len()];
    guest.process.read_vectors(0, &mut bytes);
    bytes
}

#[test]
fn vector_registers_go_in_and_out() {
    // paddb xmm1, xmm0; movdqa xmm2, xmm0; syscall
    let code = [0x66, 0x0f, 0xfc, 0xc8, 0x66, 0x0f, 0x6f, 0xd0, 0x0f, 0x05];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let mut bytes = vectors(&guest);
    bytes[XMM..XMM + 16].fill(3);
    bytes[XMM + 16..XMM + 32].fill(4);
    bytes[XSTATE_BV] |= 3;
    guest.process.write_vectors(0, &bytes);
    guest.run_to_call();
    let bytes = vectors(&guest);
    assert_eq!(bytes[XMM..XMM + 16], [3; 16]);
    assert_eq!(bytes[XMM + 16..XMM + 32], [7; 16]);
    assert_eq!(bytes[XMM + 32..XMM + 48], [3; 16]);
}

#[test]
fn upper_halves_go_in_and_out() {
    // vpaddb ymm1, ymm0, ymm0; syscall
    let code = [0xc5, 0xfd, 0xfc, 0xc8, 0x0f, 0x05];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    if guest.process.vector_components() & AVX == 0 {
        tollgate_test_support::skip::impossible("the host has no AVX");
        return;
    }
    // The offset of the upper halves is the same on all processors: the area follows the header.
    const UPPER: usize = 576;
    let mut bytes = vectors(&guest);
    bytes[XMM..XMM + 16].fill(5);
    bytes[UPPER..UPPER + 16].fill(6);
    bytes[XSTATE_BV] |= 7;
    guest.process.write_vectors(0, &bytes);
    guest.run_to_call();
    let bytes = vectors(&guest);
    assert_eq!(bytes[XMM + 16..XMM + 32], [10; 16]);
    assert_eq!(bytes[UPPER + 16..UPPER + 32], [12; 16]);
}

#[test]
fn an_impossible_area_does_no_harm() {
    // stmxcsr [rsp - 8]; syscall
    let code = [0x0f, 0xae, 0x5c, 0x24, 0xf8, 0x0f, 0x05];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let start = guest.state.clone();
    let mut bytes = vectors(&guest);
    bytes[MXCSR..MXCSR + 4].fill(0xff);
    bytes[464..576].fill(0xff);
    guest.process.write_vectors(0, &bytes);
    guest.run_to_call();
    guest.state = start;
    guest.run_to_call();
}
