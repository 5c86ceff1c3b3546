//! Tests of `cpuid`.

use super::*;
use crate::test_environment::{long_mode, protected_mode, run};
use tollgate_x86::local_apic_msrs::{APIC_BASE, TSC_DEADLINE};

fn ask(state: &mut CpuState, leaf: u32, subleaf: u32) -> [u32; 4] {
    policy(state).leaf(state, leaf, subleaf)
}

#[test]
fn osxsave_and_the_area_size_follow_the_registers() {
    let (mut state, _) = protected_mode(0);
    assert_eq!(ask(&mut state, 1, 0)[2] & basic_ecx::OSXSAVE, 0);
    assert_eq!(ask(&mut state, 0xd, 0)[1], 576);
    state.cr4 |= Cr4::OSXSAVE.bits();
    state.xcr0 = policy(&state).xcr0_mask();
    assert_ne!(ask(&mut state, 1, 0)[2] & basic_ecx::OSXSAVE, 0);
    let [mask, current, largest, _] = ask(&mut state, 0xd, 0);
    assert_eq!(u64::from(mask), policy(&state).xcr0_mask());
    assert_eq!(current, largest);
}

#[test]
fn ecx_counts_only_where_an_answer_may_have_subleaves() {
    let (mut state, _) = protected_mode(0);
    for leaf in (0..0x40)
        .chain(0x4000_0000..0x4000_0008)
        .chain(0x8000_0000..0x8000_0040)
    {
        let answer = ask(&mut state, leaf, 0);
        let differs = (1..64).any(|subleaf| ask(&mut state, leaf, subleaf) != answer);
        assert!(!differs || may_have_subleaves(leaf), "{leaf:#x}");
    }
    assert!(!may_have_subleaves(1) && may_have_subleaves(0xd));
}

#[test]
fn apic_and_tsc_deadline_are_there_if_the_machine_has_them() {
    let (mut state, mut environment) = protected_mode(0);
    let mut leaf_1 = |msrs: Vec<(u32, u64)>| {
        environment.platform.msrs = msrs;
        (state.gpr[0], state.gpr[1]) = (1, 0);
        run(&mut state, &mut environment, &[0x0f, 0xa2]).unwrap();
        let (ecx, edx) = (state.gpr[1] as u32, state.gpr[2] as u32);
        (
            edx & basic_edx::APIC != 0,
            ecx & basic_ecx::TSC_DEADLINE != 0,
        )
    };
    assert_eq!(leaf_1(vec![]), (false, false));
    let (base, deadline) = ((APIC_BASE, 0xfee0_0900), (TSC_DEADLINE, 0));
    assert_eq!(leaf_1(vec![base]), (true, false));
    assert_eq!(leaf_1(vec![base, deadline]), (true, true));
    assert_eq!(
        leaf_1(vec![(APIC_BASE, 0xfee0_0100), deadline]),
        (false, false)
    );
}

#[test]
fn the_guest_sees_one_logical_processor() {
    let (mut state, _) = protected_mode(0);
    let [_, ebx, ecx, edx] = ask(&mut state, 1, 0);
    assert_eq!(ebx >> 16, 1);
    assert_eq!(edx >> 28 & 1, 0, "no HTT");
    assert_eq!(ecx >> 31, 1, "hypervisor");
    assert_eq!(ask(&mut state, 0xb, 0), [0, 1, 0x100, 0]);
    assert_eq!(ask(&mut state, 0xb, 1), [0, 1, 0x201, 0]);
    for subleaf in 0..4 {
        for leaf in [4, LEAF_AMD_CACHES] {
            assert_eq!(ask(&mut state, leaf, subleaf)[0] & !0x3fff, 0);
        }
    }
}

#[test]
fn the_hypervisor_names_itself() {
    let (mut state, _) = protected_mode(0);
    let [largest, ebx, ecx, edx] = ask(&mut state, 0x4000_0000, 0);
    assert_eq!(largest, 0x4000_0010);
    let name: Vec<u8> = [ebx, ecx, edx]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(&name, HYPERVISOR_SIGNATURE);
    assert_eq!(ask(&mut state, 0x4000_0001, 0), [7, 0, 0, 0]);
    assert_eq!(ask(&mut state, 0x4000_0002, 0), [0; 4]);
    // Tollgate's leaves follow KVM's interface, if the guest is shown that.
    state.paravirtual = Paravirtual::Kvm;
    let [largest, ebx, ecx, edx] = ask(&mut state, 0x4000_0000, 0);
    assert_eq!(largest, 0x4000_0001);
    let text = [ebx, ecx, edx].map(u32::to_le_bytes).concat();
    assert_eq!(text, b"KVMKVMKVM\0\0\0");
    assert_eq!(ask(&mut state, 0x4000_0001, 0), [0x100_000a, 0, 0, 0]);
    let [largest, ebx, ecx, edx] = ask(&mut state, 0x4000_0100, 0);
    assert_eq!(largest, 0x4000_0110);
    let text = [ebx, ecx, edx].map(u32::to_le_bytes).concat();
    assert_eq!(text, HYPERVISOR_SIGNATURE);
    assert_eq!(ask(&mut state, 0x4000_0101, 0), [7, 0, 0, 0]);
    assert_eq!(
        ask(&mut state, 0x4000_0110, 0)[1],
        APIC_BUS_KHZ,
        "and its frequencies"
    );
    assert_eq!(ask(&mut state, 0x4000_0010, 0), [0; 4]);
    state.paravirtual = Paravirtual::None;
    let [tsc, bus, _, _] = ask(&mut state, 0x4000_0010, 0);
    assert!(tsc > 100_000);
    assert_eq!(bus, APIC_BUS_KHZ);
}

#[test]
fn nothing_unhandled_is_offered() {
    use CpuidFeature as F;
    for feature in [
        F::MONITOR,
        F::VMX,
        F::SVM,
        F::AVX512ER,
        F::AVX512_4VNNIW,
        F::RTM,
        F::PKU,
        F::D3NOW,
        F::XOP,
        F::FMA4,
        F::TBM,
        F::CYRIX_FPU,
        F::INTEL386_ONLY,
        F::SMM,
        F::RDPRU,
        F::CLZERO,
        F::WAITPKG,
        F::UMOV,
    ] {
        assert!(!policy_of(CpuModel::Host).offers(feature), "{feature:?}");
    }
    let (mut state, _) = protected_mode(0);
    let [_, _, ecx, _] = ask(&mut state, 0x8000_0001, 0);
    assert_eq!(ecx & (1 << 2), 0, "SVM");
}

#[test]
fn unknown_leaves_answer_as_the_vendor_does() {
    let host = |name: [u32; 3]| {
        move |leaf: u32, _: u32| match leaf {
            0 => [0xd, name[0], name[2], name[1]],
            1 => [0x600, 0, basic_ecx::XSAVE | basic_ecx::AVX, 0x178b_fbff],
            0x8000_0000 => [0x8000_0021, 0, 0, 0],
            _ => [0; 4],
        }
    };
    let (mut state, _) = protected_mode(0);
    state.xcr0 = 7;
    let intel = CpuidPolicy::derive(host([0x756e_6547, 0x4965_6e69, 0x6c65_746e]), 7);
    assert_eq!(intel.vendor(), Vendor::Intel);
    assert_eq!(intel.leaf(&state, 0x55, 0), [7, 832, 832, 0]);
    assert_eq!(intel.leaf(&state, 0x8000_0021, 0), [7, 832, 832, 0]);
    let amd = CpuidPolicy::derive(host([0x6874_7541, 0x6974_6e65, 0x444d_4163]), 7);
    assert_eq!(amd.vendor(), Vendor::Amd);
    assert_eq!(amd.leaf(&state, 0x55, 0), [0; 4]);
}

#[test]
fn without_avx_state_nothing_that_needs_it_is_offered() {
    let everything = |leaf: u32, _: u32| match leaf {
        0 => [0x20, 0, 0, 0],
        0x8000_0000 => [0x8000_0021, 0, 0, 0],
        _ => [u32::MAX; 4],
    };
    let policy = CpuidPolicy::derive(everything, 3);
    assert_eq!(policy.xcr0_mask(), 3);
    for feature in [
        CpuidFeature::AVX,
        CpuidFeature::AVX2,
        CpuidFeature::FMA,
        CpuidFeature::F16C,
        CpuidFeature::BMI1,
        CpuidFeature::VAES,
        CpuidFeature::VPCLMULQDQ,
        CpuidFeature::AVX_VNNI,
        CpuidFeature::AVX_IFMA,
    ] {
        assert!(!policy.offers(feature));
    }
    assert!(policy.offers(CpuidFeature::GFNI), "has forms of SSE");
    assert!(policy.offers(CpuidFeature::XSAVE));
    let policy = CpuidPolicy::derive(everything, 0);
    assert!(!policy.offers(CpuidFeature::XSAVE));
    assert!(!policy.cr4_mask().contains(Cr4::OSXSAVE));
}

#[test]
fn leaf_7_shows_what_the_host_has_and_what_needs_nothing_of_it() {
    let host = |structured: [u32; 4], subleaf_1: u32| {
        move |leaf: u32, subleaf: u32| match (leaf, subleaf) {
            (0, _) => [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
            (1, _) => [0x600, 0, basic_ecx::XSAVE | basic_ecx::AVX, 0x178b_fbff],
            (7, 0) => structured,
            (7, 1) => [subleaf_1, 0, 0, 0],
            _ => [0; 4],
        }
    };
    let (state, _) = protected_mode(0);
    let (gfni, clwb, vnni) = (1 << 8, 1 << 24, 1 << 4);
    let rich = CpuidPolicy::derive(host([1, clwb, gfni, 0], vnni), 7);
    let [last, ebx, ecx, _] = rich.leaf(&state, 7, 0);
    assert_eq!((last, ebx & clwb, ecx & gfni), (1, clwb, gfni));
    assert_eq!(rich.leaf(&state, 7, 1), [vnni, 0, 0, 0]);
    assert!(rich.offers(CpuidFeature::CLWB) && rich.offers(CpuidFeature::AVX_VNNI));
    // A subleaf that leaf 7 does not announce has no meaning.
    let poor = CpuidPolicy::derive(host([0; 4], vnni), 7);
    let [last, _, ecx, _] = poor.leaf(&state, 7, 0);
    assert_eq!((last, ecx & gfni), (0, 0));
    assert!(!poor.offers(CpuidFeature::AVX_VNNI) && !poor.offers(CpuidFeature::GFNI));
    assert!(
        poor.offers(CpuidFeature::RDPID),
        "reads a register of the guest's"
    );
}

/// A host with all of AVX-512, with these offsets of its components in the standard format.
fn host_with_avx_512(offsets: [u32; 4], xsave: u32) -> impl Fn(u32, u32) -> [u32; 4] {
    move |leaf, subleaf| match (leaf, subleaf) {
        (0, _) => [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
        (1, _) => [0x600, 0, basic_ecx::XSAVE | basic_ecx::AVX, 0x178b_fbff],
        (7, 0) => [1, u32::MAX, u32::MAX, u32::MAX],
        (7, 1) => [u32::MAX, 0, 0, 0],
        (0xd, 1) => [xsave, 0, 0, 0],
        (0xd, 2) => [256, offsets[0], 0, 0],
        (0xd, 5) => [64, offsets[1], 0, 0],
        (0xd, 6) => [512, offsets[2], 0, 0],
        (0xd, 7) => [1024, offsets[3], 0, 0],
        _ => [0; 4],
    }
}

#[test]
fn avx_512_comes_with_its_state_where_the_host_has_it() {
    let offsets = [576, 1088, 1152, 1664];
    let (mut state, _) = protected_mode(0);
    state.xcr0 = 0xe7;
    let rich = CpuidPolicy::derive(host_with_avx_512(offsets, 0xf), 0xe7);
    assert_eq!(rich.xcr0_mask(), 0xe7);
    assert!(rich.offers(CpuidFeature::AVX512F) && rich.offers(CpuidFeature::AVX512_FP16));
    assert_eq!(rich.leaf(&state, 0xd, 0), [0xe7, 2688, 2688, 0]);
    assert_eq!(rich.leaf(&state, 0xd, 1), [0xf, 2432, 0, 0]);
    assert_eq!(rich.leaf(&state, 0xd, 6), [512, 1152, 0, 0]);
    state.xcr0 = 7;
    assert_eq!(rich.leaf(&state, 0xd, 0), [0xe7, 832, 2688, 0]);
    assert_eq!(rich.leaf(&state, 0xd, 1), [0xf, 832, 0, 0]);
    // A host whose operating system does not enable AVX-512, and a processor without XSAVEC.
    for (xsave, xcr0) in [(0xf, 7), (1, 0xe7)] {
        let poor = CpuidPolicy::derive(host_with_avx_512(offsets, xsave), xcr0);
        assert_eq!(poor.xcr0_mask(), 7);
        let words = poor.leaf(&state, 7, 0);
        assert_eq!(words[1] & structured_ebx::NEEDS_AVX_512, 0);
        assert_eq!(words[2] & structured_ecx::NEEDS_AVX_512, 0);
        assert_eq!(words[3] & structured_edx::HANDLED, 0);
        assert!(!poor.offers(CpuidFeature::AVX512_BF16));
        assert!(poor.offers(CpuidFeature::AVX_VNNI));
        assert_eq!(poor.leaf(&state, 0xd, 5), [0; 4]);
    }
}

/// Leaf 8000_0001h: SYSCALL, NX, 1 GiB pages, RDTSCP, LM.
const LONG_MODE_FEATURES: u32 = 1 << 11 | 1 << 20 | 1 << 26 | 1 << 27 | 1 << 29;

#[test]
fn long_mode_is_offered_with_40_and_48_bits_of_address() {
    let (mut state, _) = long_mode(0);
    let [_, _, _, edx] = ask(&mut state, 0x8000_0001, 0);
    assert_eq!(edx & LONG_MODE_FEATURES, LONG_MODE_FEATURES);
    assert_eq!(ask(&mut state, 0x8000_0008, 0)[0], 0x3028);
    assert!(policy(&state).offers(CpuidFeature::X64));
}

#[test]
fn amd_says_that_the_pointers_of_the_x87_are_always_restored() {
    let (state, _) = long_mode(0);
    let said = policy(&state).leaf(&state, 0x8000_0008, 0)[1];
    let amd = policy(&state).vendor() == Vendor::Amd;
    assert_eq!(said & extended::ERROR_POINTERS_RESTORED != 0, amd);
}

#[test]
fn intel_shows_syscall_to_64_bit_code_only() {
    let (legacy, _) = protected_mode(0);
    let shown = policy(&legacy).leaf(&legacy, 0x8000_0001, 0)[3] & extended::EDX_SYSCALL;
    let amd = policy(&legacy).vendor() == Vendor::Amd;
    assert_eq!(shown != 0, amd);
    let of_amd = policy_of(CpuModel::Qemu64);
    let shown = of_amd.leaf(&legacy, 0x8000_0001, 0)[3];
    assert_ne!(shown & extended::EDX_SYSCALL, 0);
}

#[test]
fn models_have_fixed_features_and_their_vendors_have_theirs() {
    let one = policy_of(CpuModel::X86_64V1);
    let two = policy_of(CpuModel::X86_64V2);
    assert!(!one.offers(CpuidFeature::SSE3) && one.offers(CpuidFeature::SSE2));
    assert!(two.offers(CpuidFeature::POPCNT) && !two.offers(CpuidFeature::AVX));
    assert_eq!((two.xcr0_mask(), two.max_basic()), (0, 0xb));
    assert!(!two.cr4_mask().contains(Cr4::OSXSAVE));
    let qemu = policy_of(CpuModel::Qemu64);
    assert_eq!(qemu.vendor(), Vendor::Amd);
    assert!(qemu.offers(CpuidFeature::CMPXCHG16B) && !qemu.offers(CpuidFeature::RDTSCP));
    let (state, _) = long_mode(0);
    assert_eq!(qemu.leaf(&state, 1, 0)[0], 0x6_0fb1);
    // A null selector clears the base, on all AMD processors that we offer.
    assert_ne!(qemu.leaf(&state, 0x8000_0021, 0)[0] & 1 << 6, 0);
    let brand: Vec<u8> = (0x8000_0002..0x8000_0005)
        .flat_map(|leaf| qemu.leaf(&state, leaf, 0))
        .flat_map(u32::to_le_bytes)
        .collect();
    assert!(brand.starts_with(b"QEMU Virtual CPU version 2.5+\0"));
}

#[test]
fn a_model_is_refused_with_the_features_that_the_host_lacks() {
    let host = |leaf: u32, _: u32| match leaf {
        0 => [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
        1 => [0x600, 0, basic_ecx::SSE3 | basic_ecx::CX16, u32::MAX],
        0x8000_0000 => [0x8000_0008, 0, 0, 0],
        0x8000_0001 => [0, 0, extended::ECX_LAHF, 0],
        _ => [0; 4],
    };
    let policy = CpuidPolicy::derive(host, 0);
    assert_eq!(policy.check(CpuModel::X86_64V1), Ok(()));
    assert_eq!(policy.check(CpuModel::Qemu64), Ok(()));
    let error = policy.check(CpuModel::X86_64V2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "CPU model x86-64-v2 needs features that this host lacks: ssse3, sse4_1, sse4_2, popcnt"
    );
}

#[test]
fn a_product_is_for_hosts_of_its_maker_that_have_its_features() {
    // An Intel host that has every feature.
    let intel = CpuidPolicy::derive(
        |leaf, subleaf| match leaf {
            1 => [0x600, 0, u32::MAX, u32::MAX],
            0x8000_0000 => [0x8000_0008, 0, 0, 0],
            0x8000_0001 => [0, 0, u32::MAX, u32::MAX],
            _ => host_with_avx_512([576, 1088, 1152, 1664], 0xf)(leaf, subleaf),
        },
        0xe7,
    );
    assert_eq!(intel.check(CpuModel::X86_64V4), Ok(()));
    assert_eq!(intel.check(CpuModel::IcelakeServer), Ok(()));
    let error = intel.check(CpuModel::EpycGenoa).unwrap_err();
    assert_eq!(
        error.to_string(),
        "CPU model EPYC-Genoa needs one of AMD's processors, and this host's is not"
    );
    let (mut state, _) = protected_mode(0);
    state.xcr0 = 0xe7;
    let skylake = intel.clone().restricted_to(CpuModel::SkylakeServer);
    assert_eq!(skylake.leaf(&state, 1, 0)[0], 0x0005_0654);
    assert!(skylake.offers(CpuidFeature::AVX512VL) && !skylake.offers(CpuidFeature::GFNI));
    assert_eq!(skylake.xcr0_mask(), 0xe7);
    // The layout of saved images is the same on all hosts.
    assert_eq!(skylake.leaf(&state, 0xd, 0), [0xe7, 2432, 2432, 0]);
    let without = intel.restricted_to(CpuModel::X86_64V3);
    assert_eq!(without.xcr0_mask(), 7);
    assert_eq!(
        without.check(CpuModel::X86_64V4).unwrap_err().to_string(),
        "CPU model x86-64-v4 needs features that this host lacks: avx512f, avx512dq, avx512cd, \
         avx512bw, avx512vl"
    );
}

#[test]
fn the_page_walker_and_cpuid_agree_on_pages_of_1_gib() {
    let (mut state, _) = long_mode(0);
    for model in CpuModel::ALL {
        state.model = model;
        let [_, _, _, edx] = policy(&state).leaf(&state, 0x8000_0001, 0);
        let offered = edx & extended::EDX_PDPE1GB != 0;
        assert_eq!(offered, model.has_huge_pages(), "{}", model.name());
    }
}

#[test]
fn identifiers_of_address_spaces_need_nothing_of_the_host() {
    let bare = |leaf: u32, _: u32| match leaf {
        0 => [7, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
        0x8000_0000 => [0x8000_0008, 0, 0, 0],
        _ => [0; 4],
    };
    let policy = CpuidPolicy::derive(bare, 0);
    assert!(policy.offers(CpuidFeature::INVPCID) && policy.cr4_mask().contains(Cr4::PCIDE));
    for model in CpuModel::ALL {
        let offers = policy_of(model).offers(CpuidFeature::INVPCID);
        assert_eq!(offers, model != CpuModel::Qemu64, "{}", model.name());
        assert_eq!(policy_of(model).cr4_mask().contains(Cr4::PCIDE), offers);
    }
}

#[test]
fn models_are_found_by_name_and_an_unknown_name_lists_them() {
    assert_eq!(CpuidPolicy::of_model("host"), Ok(CpuModel::Host));
    assert_eq!(CpuidPolicy::of_model("x86-64-v1"), Ok(CpuModel::X86_64V1));
    let error = CpuidPolicy::of_model("486").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no CPU model \"486\": choose one of host, x86-64-v1, x86-64-v2, x86-64-v3, \
         qemu64, x86-64-v4, Skylake-Server, Icelake-Server, EPYC, EPYC-Milan, EPYC-Genoa"
    );
    let models = CpuidPolicy::models();
    assert_eq!(models.len(), CpuModel::ALL.len());
    for (name, features) in models {
        assert!(features.contains(&"lm"), "{name}");
    }
}

#[test]
fn two_processors_of_one_process_may_differ() {
    let (mut first, mut environment) = long_mode(0);
    let mut second = first.clone();
    second.model = CpuModel::Qemu64;
    for state in [&mut first, &mut second] {
        state.gpr[0] = 0x8000_0001;
        run(state, &mut environment, &[0x0f, 0xa2]).unwrap();
    }
    let rdtscp = u64::from(extended::EDX_RDTSCP);
    assert_ne!(first.gpr[2] & rdtscp, 0);
    assert_eq!(second.gpr[2] & rdtscp, 0);
}

#[test]
fn features_added_to_a_model_show_in_their_leaves() {
    let (mut state, _) = crate::test_environment::long_mode(0);
    let bits = |state: &CpuState| {
        let [_, ebx, ecx, _] = policy(state).leaf(state, 7, 0);
        [ebx >> 20 & 1, ecx >> 3 & 1, ecx >> 4 & 1]
    };
    assert_eq!(bits(&state), [0, 0, 0]);
    assert!(!policy(&state).cr4_mask().intersects(Cr4::SMAP | Cr4::PKE));
    state.added_features = AddedFeatures::SMAP;
    assert_eq!(bits(&state), [1, 0, 0]);
    assert!(policy(&state).cr4_mask().contains(Cr4::SMAP));
    state.added_features = AddedFeatures::PKS;
    assert_eq!(policy(&state).leaf(&state, 7, 0)[2] >> 31, 1);
    assert!(policy(&state).cr4_mask().contains(Cr4::PKS));
    state.added_features = AddedFeatures::PKU;
    assert_eq!(policy(&state).leaf(&state, 7, 0)[2] >> 31, 0);
    assert_eq!(bits(&state), [0, 1, 0]);
    state.cr4 |= Cr4::PKE.bits();
    assert_eq!(bits(&state), [0, 1, 1]);
    if policy(&state).has_xsave() {
        assert_eq!(
            policy(&state).xcr0_mask() & component::PKRU,
            component::PKRU
        );
        let [size, offset, ..] = policy(&state).leaf(&state, 0xd, 9);
        let [_, enabled, most, _] = policy(&state).leaf(&state, 0xd, 0);
        assert_eq!(size, 8);
        assert!(offset >= EXTENDED_REGION as u32 && most >= offset + 8 && enabled <= most);
        state.xcr0 = component::PKRU;
        let [_, enabled, ..] = policy(&state).leaf(&state, 0xd, 0);
        let [_, compacted, ..] = policy(&state).leaf(&state, 0xd, 1);
        assert_eq!(
            (enabled, compacted),
            (offset + 8, EXTENDED_REGION as u32 + 8)
        );
    }
}
