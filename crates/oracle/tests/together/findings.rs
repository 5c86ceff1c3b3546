//! States in which the guest once differed from the host's processor.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::generate::expectation;
use tollgate_oracle::oracle::Oracle;
use tollgate_oracle::{replay, report};

/// Runs reproducers; the guest must do what the host's processor does. For all segments except flat
/// ones, the host must permit processes to have local descriptors.
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
fn enter_forms_its_frame_pointer_as_the_host_does_where_sp_wraps() {
    agree(&["world=window16 at=1cba code=66c8540002 gpr=0,0,0,0,0,5000,0,0"]);
    // enter 10h, 0 to 2, with ESP = 0, 10000h, FFFF0000h and 20004h
    for level in 0..3 {
        for esp in ["0", "10000", "ffff0000", "20004"] {
            let state = format!("gpr=0,0,0,0,{esp},12345678,0,0 flags=202 fill=zero");
            agree(&[
                &format!("world=narrow32 at=1885 code=c81000{level:02} {state}"),
                &format!("world=window16 at=1885 code=66c81000{level:02} {state}"),
            ]);
        }
    }
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
        // fstp tbyte fs:[rax+10h] after REX and FS; ficomp word [r15+0Fh] after two REX
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

#[test]
fn a_gather_that_faults_leaves_the_mask_that_the_host_leaves() {
    agree(&[
        // vpgatherdq xmm1, [edx+xmm0], xmm7, whose first element faults
        "world=wide16 at=225c code=67c4e2c1900c02 gpr=0,0,0,0,0,0,0,0 \
         vector=110:0000000000000080ffff0f1744803eda",
        // vpgatherdd ymm7, [ebp+ymm5+6Ah], ymm10 and 128 bits after some elements
        "world=narrow32 at=2403 code=c4e22d903c2da3edb46a gpr=0,0,0,0,0,0,0,0 \
         vector=260:52ac50a7faef5a412c6dde0059676739",
        "world=long64 at=1838 code=c4e249900c27 gpr=0,0,0,0,0,0,0,11503ffe,0,0,0,0,0,0,0,0 \
         vector=e0:c305000009000000feffffff01000000 vector=100:0000c040000080ff00000080ffff7fff \
         vector=250:95f05c64333901bfa3aa10197f48b2c0",
    ]);
}

#[test]
fn an_element_of_a_masked_move_wraps_where_the_hosts_does() {
    agree(&[
        // vmaskmovps gs:[r10d], ymm0, ymm12 and the load, both at FFFFFFFFh
        "world=high64 at=29cc code=6567c4427d2e22 \
         gpr=0,0,0,0,0,0,0,0,0,0,ffffffff,0,0,0,0,0 vector=240:00000000000000000000000000000080",
        "world=high64 at=29cc code=6567c4427d2c22 \
         gpr=0,0,0,0,0,0,0,0,0,0,ffffffff,0,0,0,0,0 vector=240:00000000000000000000000000000080",
    ]);
}

#[test]
fn state_images_are_those_of_the_host_but_for_what_it_may_choose() {
    agree(&[
        // fxsave [si]; xsave [ebp-4Fh] of x87 and SSE; xsaveopt [di-16h] of SSE and AVX
        "world=wide16 at=2130 code=0fae04 gpr=0,0,0,0,0,0,aac0,0 fill=zero",
        "world=based32 at=2121 code=0fae65b1 gpr=3,0,0,0,0,704f,0,0 fill=zero",
        "world=narrow32 at=1c30 code=3e670fae75ea gpr=6,0,0,0,0,0,0,f016 fill=zero",
        "world=long64 at=246a code=4b0fae6781 gpr=6,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1150707f",
    ]);
    for image in ["0fae2b", "0fae33", "0fae23"] {
        for components in 0..8 {
            // The legacy region starts in an absent page, or in a read-only one.
            for at in ["11506f40", "11509f40"] {
                agree(&[&format!(
                    "world=flat32 code={image} gpr={components},0,0,{at},0,0,0,0"
                )]);
            }
        }
    }
}

#[test]
fn sha_instructions_need_alignment_where_the_host_wants_it() {
    agree(&[
        // sha256rnds2 xmm1, [eax-71135817h] in an absent page; sha1msg1 xmm0, gs:[ebp+15h]
        "world=narrow32 at=2101 code=0f38cb88e9a7ec8e gpr=0,0,0,0,0,0,0,0",
        "world=based32 at=26dd code=650f38c94515 gpr=0,0,0,0,0,4919,0,0",
    ]);
}

#[test]
fn prefetch_of_a_register_is_what_it_is_on_the_host() {
    agree(&[
        "world=window16 at=1571 code=660f0dd2",
        "world=long64 code=420f0dca",
    ]);
}

#[test]
fn vpextrd_and_vpinsrd_with_vex_w_are_what_they_are_on_the_host() {
    agree(&[
        "world=window16 at=1d07 code=c4e3f916f962",
        "world=wide16 at=1ede code=2ec4e3f9226e2dc6",
        "world=flat32 code=c4e3f916f962",
    ]);
}

#[test]
fn a_comparison_that_faults_leaves_the_flags_that_the_host_leaves() {
    agree(&[
        // repe cmpsw; repne scasw from the start of a missing page, forwards and backwards
        "world=window16 at=2c98 code=f3a7 gpr=0,2,0,0,0,0,dffe,8ffe",
        "world=narrow32 at=1ed5 code=6766f2af gpr=ffdf,d27,0,0,0,0,0,f000",
        "world=narrow32 at=234e code=6467f2af gpr=0,794,0,0,0,0,0,7000 flags=602 fill=random",
        "world=long64 at=2009 code=f349a7 \
         gpr=0,206,0,0,0,0,1150bff8,1150d2c0,0,0,0,0,0,0,0,0",
    ]);
}

#[test]
fn rex_b_makes_of_pause_what_it_makes_on_the_host() {
    agree(&[
        "world=long64 code=f34590 gpr=1,0,0,0,0,0,0,0,2f00000000,0,0,0,0,0,0,0",
        "world=long64 code=f34990 gpr=1,0,0,0,0,0,0,0,2f00000000,0,0,0,0,0,0,0",
        "world=long64 code=f34190 gpr=100000000,0,0,0,0,0,0,0,2f,0,0,0,0,0,0,0",
        "world=long64 code=f34490 gpr=1,0,0,0,0,0,0,0,2f,0,0,0,0,0,0,0",
    ]);
}

#[test]
fn near_branches_of_64_bit_code_behind_66h_go_where_the_hosts_go() {
    let general = "gpr=1800,1,0,0,11504e1c,0,0,0,0,0,0,0,0,0,0,0";
    for code in [
        "66737a",
        "660f8ed8ebffff",
        "66e9f0f7ffff",
        "66eb10",
        "66e8f0f7ffff",
        "66ffe0",
        "66ffd0",
        "66c3",
        "66c23500",
        "66e210",
        "66e310",
        "66ff2424",
        "66ff1424",
        "66480fffe0",
    ] {
        for world in ["long64", "high64"] {
            agree(&[&format!("world={world} at=113d code={code} {general}")]);
        }
    }
}

#[test]
fn far_pointers_of_64_bit_code_have_the_hosts_size() {
    agree(&[
        // lfs rbp, [rdi-54h]; lss rbx, [rbp-6Bh]
        "world=long64 at=2add code=480fb46fac gpr=0,0,0,0,0,0,0,1150dd15,0,0,0,0,0,0,0,0 \
         fill=random",
        "world=high64 at=1241 code=4a0fb25d95 gpr=0,0,0,0,0,1150d837,0,0,0,0,0,0,0,0,0,0 \
         fill=random",
    ]);
}

#[test]
fn movsxd_of_16_bits_reads_what_the_host_reads() {
    // movsxd r10w, [rdi+2D8EDD56h], two bytes before an absent page; a register
    agree(&[
        "world=long64 at=1131 code=6644639f56dd8e2d \
         gpr=0,0,0,0,0,0,0,ffffffffe3c182a8,0,0,0,0,0,0,0,0",
        "world=long64 code=6663c7 gpr=1111111111111111,0,0,0,0,0,0,89abcdef,0,0,0,0,0,0,0,0",
    ]);
}

#[test]
fn what_a_mask_leaves_out_of_an_operand_does_not_fault_where_the_hosts_does_not() {
    // vmovdqu32 zmm2{k1}, [rdx], vmovdqu8 [rdx]{k1}, zmm2, vaddps zmm2{k1}, zmm2, [rdx], and
    // vshufps, which ignores its mask, across the end of page 10 and of page 13; page 14 is
    // absent.
    for code in [
        "62f17e496f12",
        "62f17f497f12",
        "62f16c495812",
        "62f16c49c61201",
    ] {
        for target in ["1150afe0", "1150dfe0", "1150e010"] {
            for mask in ["ff00", "00ff", "0000", "ffff"] {
                let line = format!(
                    "world=long64 code={code} \
                     gpr=0,0,{target},0,0,0,0,0,0,0,0,0,0,0,0,0 fill=random \
                     vector=340:0000000000000000{mask}000000000000"
                );
                agree(&[&line]);
            }
        }
    }
}

#[test]
fn an_operand_that_reaches_beyond_canonical_addresses_faults_by_its_mask() {
    agree(&[
        // vpminuq zmm30{k1}, zmm12, [rbx]; vpmaddwd zmm20{k2}, zmm0, [rsi], which ignores it
        "world=long64 at=20de code=62629d493b33 \
         gpr=0,0,0,7fffffffffc9,0,0,0,0,0,0,0,0,0,0,0,0 vector=340:0000000000000000e3784908bc0d1783",
        "world=long64 at=12eb code=2662e17d4af526 \
         gpr=0,0,0,0,0,0,7ffffffffff8,0,0,0,0,0,0,0,0,0",
        // vpdpbusds xmm7{k5}, xmm7, [rsi], whose lanes have four bytes
        "world=long64 at=23e8 code=62f2450d513e \
         gpr=0,0,0,0,0,0,7ffffffffff1,0,0,0,0,0,0,0,0,0 vector=360:000000000000000088d0a0cc28001102",
    ]);
}

#[test]
fn a_gather_that_faults_leaves_what_the_host_leaves_above_its_vectors() {
    agree(&[
        // vpgatherqd xmm7, k1, [r15+ymm22*8]; vgatherqpd xmm7, [rdx+xmm5*4], xmm9
        "world=long64 at=206d code=62d27d21913cf7 \
         gpr=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,11503ffc \
         vector=2b0:3516aeff7373520a00001842000080ff vector=340:0000000000000000ae6bfedb899c649b",
        "world=long64 at=1ff3 code=c4e2b1933caa gpr=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0 \
         vector=130:0000807fffff7fff616198ff00008080 vector=4a0:01ef9bff0000807f9a6ad1ff3419f57f",
    ]);
}

#[test]
fn int1_is_a_trap_whatever_a_hypervisor_makes_of_it() {
    agree(&[
        "world=wide16 at=1c7e code=65f1",
        "world=long64 at=28bd code=f1",
    ]);
}

#[test]
fn an_offset_that_is_not_canonical_may_be_refused_by_the_host_alone() {
    agree(&[
        // adc ebx, fs:[rdi+3558B4h], whose sum with the base is canonical
        "world=long64 at=2011 code=64139fb4583500 \
         gpr=0,0,0,0,0,0,0,ffff7ffffe7aa74c,0,0,0,0,0,0,0,0",
    ]);
}

#[test]
fn a_mask_may_exclude_the_bytes_beyond_a_segments_limit() {
    agree(&[
        // vmaxps zmm7{k1}, zmm2, [edx+19C0h], whose first element lies below the limit of a segment
        // that expands down: with an empty mask, without the first element, and with it
        "world=narrow32 at=2c3d code=62f12c495f7a67 gpr=0,0,6e3c,0,0,0,0,0",
        "world=narrow32 at=2c3d code=62f12c495f7a67 gpr=0,0,6e3c,0,0,0,0,0 \
         vector=340:0000000000000000feff000000000000",
        "world=narrow32 at=2c3d code=62f12c495f7a67 gpr=0,0,6e3c,0,0,0,0,0 \
         vector=340:0000000000000000ffff000000000000",
    ]);
}

#[test]
fn the_virtualization_of_amd_is_refused_as_the_host_refuses_it() {
    agree(&[
        // clgi; vmload; skinit
        "world=window16 at=1ff9 code=0f01dd",
        "world=narrow32 at=29c1 code=2e670f01da",
        "world=narrow32 at=1bf8 code=0f01de",
        // invlpga
        "world=long64 at=23eb code=480f01df",
    ]);
}
