//! Facts about `cpuid`.

use super::*;
use crate::msr::{APIC_BASE, TSC_DEADLINE};
use crate::test_environment::{protected_mode, run};

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
        F::INVPCID,
        F::AVX512F,
        F::XSAVEC,
        F::XSAVES,
        F::RTM,
        F::PKU,
        F::D3NOW,
        F::SSE4A,
        F::XOP,
        F::FMA4,
        F::TBM,
        F::CYRIX_FPU,
        F::INTEL386_ONLY,
        F::SMM,
        F::RDPID,
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
    ] {
        assert!(!policy.offers(feature));
    }
    assert!(policy.offers(CpuidFeature::XSAVE));
    let policy = CpuidPolicy::derive(everything, 0);
    assert!(!policy.offers(CpuidFeature::XSAVE));
    assert!(!policy.cr4_mask().contains(Cr4::OSXSAVE));
}
