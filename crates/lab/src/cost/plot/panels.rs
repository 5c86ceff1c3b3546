//! The lines of the plot of all kinds: which kinds are drawn, and together with which others.

/// The lines of the plot: a title and its kinds.
pub(super) const PANELS: &[(&str, &[&str])] = &[
    (
        "Leaving and returning",
        &["null-hypercall", "hypercall", "cpuid", "rdtsc"],
    ),
    (
        "Devices",
        &[
            "port-in",
            "port-in-serial",
            "port-out",
            "mmio-read",
            "mmio-write",
            "eoi",
        ],
    ),
    ("Flags", &["cli", "sti", "pushf", "popf"]),
    (
        "Control transfers",
        &[
            "int",
            "iret",
            "int-iret",
            "sysenter-sysexit",
            "syscall-sysret",
            "far-jump",
            "far-call-return",
        ],
    ),
    (
        "Segments and system registers",
        &[
            "segment-load",
            "segment-store",
            "cr0-read",
            "cr0-write",
            "msr-read",
            "msr-write",
            "sgdt",
        ],
    ),
    (
        "Memory",
        &[
            "tlb-miss-read",
            "tlb-miss-write",
            "invlpg",
            "cr3-load",
            "cr3-load-touch-16",
            "slow-access",
        ],
    ),
    (
        "64-bit code",
        &[
            "syscall",
            "swapgs",
            "fs-base-msr-write",
            "fs-base-write",
            "cr8-write",
            "cr3-load-keep",
            "invpcid",
        ],
    ),
    (
        "Faults and code",
        &[
            "page-fault",
            "page-table-use",
            "invalid-opcode",
            "divide-error",
            "code-write",
            "patch-and-call",
            "indirect-miss",
        ],
    ),
    (
        "Interrupts, strings, vector registers",
        &[
            "self-ipi",
            "timer-interrupt",
            "hlt-to-timer",
            "string",
            "string-down",
            "fxsave",
            "vector-load",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::kinds::KINDS;
    use tollgate_plots::COLOURS;

    #[test]
    fn panels_name_kinds_and_have_a_colour_for_each() {
        for (title, kinds) in PANELS {
            assert!(kinds.len() <= COLOURS.len(), "{title}");
            for name in *kinds {
                assert!(KINDS.iter().any(|kind| kind.name == *name), "{name}");
            }
        }
    }
}
