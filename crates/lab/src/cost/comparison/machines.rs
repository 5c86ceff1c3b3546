//! The machines that `tollgate cost --with` compares, and what each of them lacks.

use super::super::image::GuestMode;
use super::super::qemu::{Accelerator, Features};
use std::arch::x86_64::__cpuid;

/// A machine other than Tollgate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherMachine {
    /// The host itself, by a program.
    Native,
    /// QEMU's translator.
    Qemu,
    /// QEMU with the host's KVM.
    Kvm,
}

/// Tollgate's name in the output.
pub const TOLLGATE: &str = "tollgate";

impl OtherMachine {
    /// All of them, in the order of the output.
    pub const ALL: [Self; 3] = [Self::Native, Self::Qemu, Self::Kvm];

    /// The name on the command line and in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Qemu => "qemu",
            Self::Kvm => "kvm",
        }
    }

    /// How QEMU runs the guest; `None` for the host.
    pub const fn accelerator(self) -> Option<Accelerator> {
        match self {
            Self::Native => None,
            Self::Qemu => Some(Accelerator::Tcg),
            Self::Kvm => Some(Accelerator::Kvm),
        }
    }

    /// What the machine is, in a sentence.
    pub fn what(self) -> String {
        match self {
            Self::Native => "a program on this host; its system calls, page faults and divisions by zero contain \
                             the host's kernel, the latter two as signals"
                .to_owned(),
            Self::Qemu => "the same guest in QEMU's translator, TCG".to_owned(),
            Self::Kvm => format!("the same guest in QEMU with -accel kvm{}", kind_of_kvm()),
        }
    }
}

/// A warning if KVM works here without hardware for it.
fn kind_of_kvm() -> &'static str {
    let vmx = __cpuid(1).ecx & 1 << 5 != 0;
    let svm = __cpuid(0x8000_0000).eax > 0x8000_0000 && __cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    match vmx || svm {
        true => "",
        false => {
            "; this host's processor shows neither VMX nor SVM, so its exits are not those of hardware"
        }
    }
}

/// Kinds that a program can cause natively.
const NATIVE: [&str; 5] = [
    "cpuid",
    "syscall-sysret",
    "call-return",
    "page-fault-iret",
    "divide-error-iret",
];
/// Kinds that need a device of Tollgate's own.
const OF_TOLLGATE: [&str; 5] = [
    "hypercall",
    "disk-request-ide",
    "disk-request-dma",
    "disk-request-virtio",
    "packet-virtio",
];
/// Kinds that are hypercalls, or contain one.
const HYPERCALLS: [&str; 2] = ["null-hypercall", "vector-load"];
/// CPUID leaf 1, ECX.
const PCID: u32 = 1 << 17;
const X2APIC: u32 = 1 << 21;
const TSC_DEADLINE: u32 = 1 << 24;
/// CPUID leaf 7, EBX.
const FSGSBASE: u32 = 1;
const INVPCID: u32 = 1 << 10;

/// Why the host cannot cause events of this kind natively; `None` if it can.
pub fn missing_natively(kind: &str, mode: GuestMode) -> Option<&'static str> {
    if NATIVE.contains(&kind) {
        return None;
    }
    Some(match kind {
        _ if HYPERCALLS.contains(&kind) || OF_TOLLGATE.contains(&kind) => "none: needs a monitor",
        _ if matches!(mode, GuestMode::LongRing3 | GuestMode::Ring3) => {
            "not run: the native program does not have it"
        }
        _ => "needs ring 0",
    })
}

/// Why the guest cannot cause events of this kind in QEMU; `None` if it can.
pub fn missing_in_qemu(
    accelerator: Accelerator,
    kind: &str,
    features: Features,
) -> Option<&'static str> {
    let lacks_leaf_1 = |bit| features.leaf_1 & bit == 0;
    let lacks_leaf_7 = |bit| features.leaf_7 & bit == 0;
    let reason = match kind {
        _ if OF_TOLLGATE.contains(&kind) => "none: no such device or call",
        _ if HYPERCALLS.contains(&kind) && accelerator == Accelerator::Tcg => {
            "none: TCG has no hypercalls; its nearest are port-out and cpuid, which leave translated code for a helper"
        }
        "cr3-load-keep" if lacks_leaf_1(PCID) => "none: no PCID",
        "invpcid" if lacks_leaf_7(INVPCID) => "none: no INVPCID",
        "fs-base-read" | "fs-base-write" if lacks_leaf_7(FSGSBASE) => "none: no FSGSBASE",
        "tsc-deadline-write" if lacks_leaf_1(TSC_DEADLINE) => "none: no TSC deadline",
        _ if kind.starts_with("x2apic-") && lacks_leaf_1(X2APIC) => "none: no x2APIC mode",
        _ => return None,
    };
    Some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::kinds;

    #[test]
    fn what_is_missing_names_kinds_that_exist() {
        let known = |name: &&str| kinds::KINDS.iter().any(|kind| kind.name == *name);
        assert!(NATIVE.iter().all(&known));
        assert!(OF_TOLLGATE.iter().all(&known));
        assert!(HYPERCALLS.iter().all(known));
    }

    #[test]
    fn a_translator_without_hypercalls_has_none() {
        let features = Features {
            leaf_1: 0,
            leaf_7: 0,
        };
        let missing = |accelerator, kind| missing_in_qemu(accelerator, kind, features);
        assert!(
            missing(Accelerator::Tcg, "null-hypercall")
                .unwrap()
                .starts_with("none")
        );
        assert_eq!(missing(Accelerator::Kvm, "null-hypercall"), None);
        assert_eq!(
            missing(Accelerator::Kvm, "invpcid"),
            Some("none: no INVPCID")
        );
        assert_eq!(
            missing_natively("cr8-write", GuestMode::Long),
            Some("needs ring 0")
        );
        assert_eq!(missing_natively("call-return", GuestMode::Long), None);
    }
}
