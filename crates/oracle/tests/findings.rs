//! States in which the guest once differed from the host's processor.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::generate::expectation;
use tollgate_oracle::oracle::Oracle;
use tollgate_oracle::{replay, report};

/// Runs reproducers; the guest must do what the host's processor does. The host must let
/// processes have local descriptors for all but flat segments.
fn agree(lines: &[&str]) {
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).unwrap();
    for line in lines {
        let (case, input) = replay::read(line).unwrap();
        if !case.world.is_available() {
            continue;
        }
        let (text, agree) = report::describe(&mut oracle, &case, &input, expectation(&case));
        assert!(agree, "{text}");
    }
}

#[test]
fn a_misaligned_operand_is_a_protection_fault_even_in_an_absent_page() {
    agree(&[
        // movdqa [ecx], xmm4; paddsw xmm4, [edx] across two pages; cvtpd2pi mm0, [bx-52BAh]
        "world=flat32 at=1ff6 code=660f7f21 gpr=0,477,0,0,0,0,0,0",
        "world=flat32 at=1733 code=660fed22 gpr=0,0,cff6,0,0,0,0,0",
        "world=window16 at=18d6 code=660f2d8746ad gpr=0,0,0,12ad,0,0,0,0",
        // vmovdqa ymm2, [edi+edx*8-6Ch]
        "world=flat32 at=2252 code=c5fd6f54d794",
    ]);
}

#[test]
fn a_pending_x87_exception_comes_before_the_operands_page_fault() {
    agree(&[
        // ficom dword [di]; psrlq mm7, [edi-5F2280AAh]
        "world=flat32 at=196b code=67da15 vector=0:7501ed8a000000000000000000000000",
        "world=based32 at=17e4 code=0fd3bf567fdda0 vector=0:4d03fdcc000000000000000000000000",
    ]);
}

#[test]
fn emms_waits_for_a_pending_x87_exception() {
    agree(&["world=based32 at=2a16 code=0f77 vector=0:470e9abd000000000000000000000000"]);
}

#[test]
fn a_simd_exception_is_one_while_an_x87_exception_is_pending() {
    agree(&[
        // mulss xmm7, [edx]
        "world=based32 at=13e2 code=f30f593a gpr=0,0,7340,0,0,0,0,0 fill=random \
         vector=0:4b03eaa2000000000000000000000000 vector=10:0000000000000000d2af000000000000 \
         vector=110:28bdc3bf6f8ed2c9f73f000000000000",
    ]);
}

#[test]
fn an_x87_instruction_run_out_of_line_leaves_its_address() {
    // fild qword gs:[ecx]; GS may be read, not written.
    agree(&["world=based32 at=20d6 code=65df29 gpr=0,406b,0,0,0,0,0,0"]);
}

#[test]
fn the_8087s_interrupt_instructions_do_nothing() {
    agree(&["code=dbe0", "code=dbe1", "code=dbe4"]);
}

#[test]
fn a_segment_register_across_a_page_end_needs_its_own_bytes_only() {
    agree(&[
        // push es; pop ss
        "world=based32 at=25ee code=2606 gpr=0,0,0,0,6001,0,0,0",
        "world=flat32 at=1c69 code=6517 gpr=0,0,0,0,11505ffd,0,0,0",
    ]);
}

#[test]
fn faults_of_images_and_gathers_leave_what_the_host_leaves() {
    agree(&[
        // vpgatherdd ymm2, [ebx+ymm1*4+3Dh], ymm7; xsave of nothing; fldenv of zeros
        "world=flat32 at=2d25 code=c4e24590548b3d vector=2b0:fffffff7000000c052680b6f00000200",
        "world=flat32 at=1ffa code=0fae24d3 gpr=0,0,0,11509e80,0,0,0,0",
        "world=based32 at=1f65 code=d9a42ac2efbf0d gpr=0,0,f240f011,0,0,0,0,0",
    ]);
}

#[test]
fn an_x87_store_that_raises_an_exception_stores_nothing_when_run_out_of_line() {
    agree(&[
        // fistp word [edi] of an empty register, unmasked, in an expand-down segment;
        // fnstcw, which stores whatever is pending.
        "world=narrow32 at=214d code=df1f gpr=0,0,0,0,0,0,0,a000 fill=random \
         vector=0:7c030000000000000000000000000000",
        "world=narrow32 at=275c code=d93f gpr=0,0,0,0,0,0,0,a380 \
         vector=0:510cd3ef000000000000000000000000",
    ]);
}

#[test]
fn enter_forms_its_frame_pointer_with_32_bits_even_where_sp_wraps() {
    agree(&["world=window16 at=1cba code=66c8540002 gpr=0,0,0,0,0,5000,0,0"]);
}

#[test]
fn a_call_beyond_the_limit_faults_at_its_stack_first() {
    agree(&[
        // call ecx; call with a distance; with a good stack; call rcx
        "world=wide16 at=25a7 code=6766ffd1 gpr=0,b3ba9789,0,0,3ff3,0,0,0 fill=zero",
        "world=wide16 at=25a7 code=66e800000100 gpr=0,0,0,0,3ff3,0,0,0 fill=zero",
        "world=wide16 at=25a7 code=66e800000100 gpr=0,0,0,0,5ff3,0,0,0 fill=zero",
        "world=long64 at=25a7 code=ffd1 gpr=0,8000000000000000,0,0,11503ff0,0,0,0",
    ]);
}

#[test]
fn string_comparisons_of_64_bit_lengths_need_no_alignment() {
    agree(&[
        // pcmpestri64 xmm13, [rsi+rbp], B3h; pcmpestrm64 xmm9, [ebx-57h], 56h
        "world=long64 at=1e31 code=664c0f3a612c2eb3 gpr=0,0,0,0,0,0,13b4,0",
        "world=high64 at=19be code=67664c0f3a604ba956",
    ]);
}

#[test]
fn an_x87_instruction_leaves_its_address_whatever_its_prefixes() {
    agree(&[
        // fstp tbyte fs:[rax+10h] behind REX and FS; ficomp word [r15+0Fh] behind two REX
        "world=high64 at=1ffd code=4a64db7810 gpr=3000ac30,0,0,0,0,0,0,0",
        "world=long64 at=21a5 code=363e4049de5f0f gpr=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,11508ff1",
    ]);
}

#[test]
fn an_x87_image_has_no_upper_halves_of_pointers_for_64_bit_code() {
    agree(&[
        // fldenv [r8-0Bh]; frstor [r15]
        "world=high64 at=2caa code=43d960f5 gpr=0,0,0,0,0,0,0,0,11508d0b,0,0,0,0,0,0,0 fill=random",
        "world=high64 at=1ff2 code=45dd27 gpr=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,11507100 fill=random",
    ]);
}

#[test]
fn pop_of_a_segment_register_reads_the_selector_alone_where_the_host_does() {
    agree(&[
        // pop gs, two and one bytes before an absent page
        "world=long64 code=0fa9 gpr=0,0,0,0,11505ffe,0,0,0",
        "world=high64 code=0fa9 gpr=0,0,0,0,1f3711505fff,0,0,0",
    ]);
}

#[test]
fn repeated_strings_with_32_bit_addresses_clear_upper_halves_where_the_host_does() {
    let none = "2222222200000000,0,0,0,0,3333333300000000,4444444400000000";
    let fault = "2222222200000001,0,0,0,0,333333330abcd000,444444440abcd000";
    for code in ["67f3a4", "67f348a5", "67f3a6", "67f2af", "67f3ab", "67f3ac"] {
        for rest in [none, fault] {
            agree(&[&format!(
                "world=long64 code={code} gpr=1111111100000000,{rest}"
            )]);
        }
    }
}
