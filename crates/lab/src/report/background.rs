//! What each original study did and found, for readers who do not know it. The figures are those of
//! the studies' own texts.

use crate::experiment::{Section, columns};

/// An original study.
pub struct Background {
    /// The experiment that repeats it.
    pub experiment: &'static str,
    /// The title of its chapter.
    pub title: &'static str,
    /// What was done then, a paragraph each.
    pub done: &'static [&'static str],
    /// What stands for what: the original, and here.
    pub stands_for: &'static [(&'static str, &'static str)],
    /// Its figures: what was measured, and the result.
    pub figures: &'static [(&'static str, &'static str)],
}

impl Background {
    /// The study that this experiment repeats, if there is one.
    pub fn of(experiment: &str) -> Option<&'static Self> {
        ALL.iter().find(|study| study.experiment == experiment)
    }

    /// What stands for what, as a table.
    pub fn stands_for(&self) -> Section {
        rows(&["in the study", "here"], self.stands_for)
    }

    /// The figures of the study, as a table.
    pub fn figures(&self) -> Section {
        rows(&["measured in the study", "result"], self.figures)
    }
}

fn rows(names: &[&str], pairs: &[(&str, &str)]) -> Section {
    let rows = pairs.iter();
    Section {
        columns: columns(names),
        rows: rows.map(|(one, other)| columns(&[one, other])).collect(),
        ..Section::default()
    }
}

/// The five studies.
pub const ALL: &[Background] = &[
    Background {
        experiment: "vif",
        title: "The virtual interrupt flag",
        done: &[
            "The 80386 runs 8086 programs in virtual-8086 mode under a monitor. These programs execute CLI, STI, PUSHF, \
             POPF, INT n and IRET all the time. Each reads or changes the interrupt flag, so each trapped into the \
             monitor, through a trap gate or a task gate. The author counted the traps of unmodified systems in runs of \
             minutes, and computed the share of real time that went into them.",
            "The proposal: the processor keeps a virtual interrupt flag for the task, and a request flag that stops the \
             task when an interrupt waits and the flag allows it. Then none of the six instructions traps. Intel built \
             a part of it as the virtual-8086 mode extensions.",
        ],
        stands_for: &[
            (
                "8086 systems in virtual-8086 mode of an 80386",
                "the same kind of systems in real mode and in virtual-8086 mode of the machine",
            ),
            (
                "a trap gate into the monitor",
                "a privileged instruction at user level, which the host reports by a signal (arm +trap)",
            ),
            (
                "a task gate, about three times as expensive",
                "an undefined instruction with the whole context saved (arm +task)",
            ),
            (
                "(nothing)",
                "a call out of translated code, which is how the monitor is reached by default",
            ),
        ],
        figures: &[
            (
                "DOS idle at its prompt",
                "1.9 % of instructions trapped: 66 % of the time by trap gate, 78 % by task gate",
            ),
            ("DOS copying and typing files", "0.12 %: 17 % and 23 %"),
            ("spreadsheet", "0.53 %: 36 % and 50 %"),
            ("word processor", "0.62 %: 37 % and 52 %"),
            ("CP/M-86", "about as DOS"),
        ],
    },
    Background {
        experiment: "shadow",
        title: "Many shadow tables, and little invalidation",
        done: &[
            "A monitor cannot let the processor use the guest's own page tables. It keeps shadow tables, which lead from \
             the guest's virtual addresses to the host's memory. With one shadow table, each switch of the guest's \
             address space empties it. With several, a switch selects another one, but an invalidation must reach all of \
             them, and tables that are no longer used are invalidated again and again.",
            "The authors added microcode: it invalidates only the entries that map the page in question, switches tables \
             without the monitor, and skips tables that were not selected since their last purge. They measured a \
             database on a guest of 8 MB that pages: its start, five concurrent batch jobs, and both together.",
        ],
        stands_for: &[
            (
                "the shadow (2-0) tables of a mainframe's monitor",
                "the software TLB's tables of each address space; with 'direct', the host's own page tables",
            ),
            (
                "microcode assist",
                "translated code that switches and invalidates without an exit",
            ),
            (
                "a monitor without the assist",
                "arms that switch and invalidate by an exit",
            ),
            (
                "the selection flag of a table",
                "the same flag, and exact counts of entries, which the authors called most desirable",
            ),
        ],
        figures: &[
            (
                "invalidating one page with the assist, next to selective software",
                "3.4 times faster (6 tables)",
            ),
            (
                "the same next to full invalidation in software",
                "about 140 times (6 tables)",
            ),
            ("switching with the assist", "24.4 times faster (3 tables)"),
            (
                "best number of tables",
                "3 without the assist, 6 with it, where 6 to 7 spaces are in use",
            ),
            ("TLB miss ratio", "falls to a half to a quarter"),
            ("mean instruction time", "10 % less"),
            (
                "the monitor's overhead",
                "40 to 60 % less; table maintenance was 15 to 60 % of it",
            ),
        ],
    },
    Background {
        experiment: "icache",
        title: "Cached instructions for emulated exits",
        done: &[
            "An exit that must be emulated tells the monitor only the address of the instruction. The monitor walks the \
             guest's page tables, maps the page, fetches the bytes and decodes them, although the same few instructions \
             exit again and again. The author let bhyve, FreeBSD's monitor, keep decoded instructions in a hash table, \
             and write-protected the pages that an entry depends on.",
            "He measured a loop of local-APIC accesses in a kernel module, a shell that counts, the build of a whole \
             system, dd from memory to memory, and a loop of getuid.",
        ],
        stands_for: &[
            (
                "bhyve without the cache",
                "arm 'off': each exit finds its instruction again. Tollgate never works like this",
            ),
            (
                "bhyve with the cache",
                "arm 'on': by linear address, address space and mode; 'physical': by physical address",
            ),
            (
                "(nothing)",
                "arms 'site' and 'fast-path': a translator has decoded each instruction once",
            ),
            (
                "the kernel module's loop",
                "our own kernel's loop, and that of a module where a guest has one",
            ),
        ],
        figures: &[
            ("loop of local-APIC accesses", "35 to 40 % faster"),
            ("counting shell", "no difference: 176 to 181 s both ways"),
            (
                "building a whole system",
                "no difference: 13,901 s and 13,938 s",
            ),
            ("dd, getuid", "no difference"),
            ("the author's verdict", "no benefit in real use"),
        ],
    },
    Background {
        experiment: "cost",
        title: "What an exit costs",
        done: &[
            "The author gave a guest's kernel two system calls: one executes VMCALL, the other does nothing. The \
             hypervisor returned at the top of its exit handler for marked calls. The difference of the two, in cycles, \
             is the price of the bare transition. It was measured on an i7-3960X with KVM, with the machine pinned to a \
             processor and not.",
        ],
        stands_for: &[
            (
                "VMCALL and the return of the hypervisor",
                "the null hypercall: a call out of translated code in one process. It crosses no protection boundary, so it is not compared with a hardware exit",
            ),
            ("pinned to a core, and not", "the same"),
        ],
        figures: &[
            (
                "bare exit, pinned",
                "about 95 % between 1,600 and 1,700 cycles",
            ),
            ("bare exit, not pinned", "a longer tail"),
        ],
    },
    Background {
        experiment: "interruptible",
        title: "A monitor that can be interrupted",
        done: &[
            "A monitor handles the guest's faults with interrupts off. While it works for one process, the timer that \
             would wake a more important one waits. The authors enabled interrupts in the long sections of their monitor \
             Gandalf (work on shadow page tables). When one arrived, the monitor saved its frame, ran the guest's handler \
             on top of the interrupted section, and resumed the section when the handler returned.",
            "They measured for how many cycles interrupts were masked by three LMbench programs, what these programs \
             cost, and the latency from the guest's handler to the waiting process.",
        ],
        stands_for: &[
            (
                "the monitor's sections on shadow page tables",
                "the monitor's sections that are long here: translating a block, mapping windows, filling tables",
            ),
            (
                "resuming the interrupted frame",
                "arm 'resume': the section continues from numbers that say how far it came",
            ),
            (
                "(nothing)",
                "arm 'restart': the section keeps its results, and the guest's instruction begins again",
            ),
            (
                "LMbench on Gandalf",
                "the same three programs on Linux guests, next to the same programs on the host",
            ),
        ],
        figures: &[
            (
                "cycles with interrupts masked, fork+exit and fork+exec",
                "clearly less",
            ),
            ("the same, pipe", "no less"),
            ("LMbench fork+exit", "at most 5 % slower"),
            ("the others", "less than 1 % slower"),
            (
                "latency from handler to process",
                "10.96 us natively, 11.48 under the monitor, 11.52 interruptible, 11.98 under Xen",
            ),
        ],
    },
    Background {
        experiment: "native",
        title: "Programs that run as they are",
        done: &[
            "VMware's first monitors translated the guest's kernel and ran its programs directly. User-Mode Linux and gVisor are \
             kernels that are programs of the host themselves, and run their programs directly in processes of the host.",
        ],
        stands_for: &[
            (
                "a shadow page table of a space",
                "a process of the host, whose mappings follow the guest's tables",
            ),
            (
                "a trap into the monitor, or a stop of the process",
                "a signal in the process, and a futex to the monitor and back",
            ),
        ],
        figures: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_experiment_has_its_study() {
        for experiment in crate::experiments::all() {
            let name = experiment.about().name;
            assert!(Background::of(name).is_some(), "{name}");
        }
        let mut names: Vec<&str> = ALL.iter().map(|study| study.experiment).collect();
        names.dedup();
        assert_eq!(names.len(), 6);
    }
}
