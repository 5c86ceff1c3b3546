//! The counts of a virtual processor in addition to those of its exits.

use crate::execution::instruction_cache::InstructionCounts;
use crate::execution::vcpu::Vcpu;
use crate::memory::shadow_tables::ShadowCounts;
use crate::memory::space_switch::SpaceLoads;
use crate::translated::NativeCounts;
use tollgate_engine::abi::fast_paths::{FAST_PATHS, FastPath};
use tollgate_engine::engine::EngineCounts;
use tollgate_engine::preemption::Stops;
use tollgate_exits::reading::HostCode;
use tollgate_tlb::shadow_windows::WindowCounts;

/// Counts since the start of a virtual processor.
#[derive(Clone, Debug)]
pub struct VcpuCounts {
    /// Guest instructions begun; `None` if they are not counted. An instruction that begins again,
    /// because it faulted or a signal interrupted it, counts again. A repeated string instruction
    /// counts once each time that it begins.
    pub instructions: Option<u64>,
    /// The host code that ran for these instructions if every look-up hit and no exit was taken,
    /// without the code that counts; `None` if instructions are not counted.
    pub host_code: Option<HostCode>,
    /// For each fast path, the number of instructions that it executed and that would have been
    /// exits.
    fast_paths: [u64; FAST_PATHS],
    /// Counts of the loads of address spaces.
    pub space_loads: SpaceLoads,
    /// Counts of the operations on the data derived from page tables.
    pub shadow: ShadowCounts,
    /// Counts of the operations on shadow windows.
    pub windows: WindowCounts,
    /// How exits found the instructions that they emulated.
    pub instruction_cache: InstructionCounts,
    /// Counts of what became of interruptible work that stopped.
    pub stops: Stops,
    /// The engine's work: translations and what became of them.
    pub engine: EngineCounts,
    /// Counts of programs that run natively.
    pub native: NativeCounts,
    /// Faults that were delivered by comparing with an earlier delivery.
    pub repeated_deliveries: u64,
}

impl VcpuCounts {
    /// The number of instructions that a fast path executed.
    pub fn fast_path(&self, path: FastPath) -> u64 {
        self.fast_paths[path as usize]
    }

    /// For each fast path, the kind of exit that its instructions would have been, and their
    /// number.
    pub fn fast_paths(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FastPath::ALL
            .map(|path| (path.name(), self.fast_path(path)))
            .into_iter()
    }

    /// The counts of the data derived from page tables and of shadow windows, with their names in
    /// statistics.
    pub fn shadow_tables(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.shadow.named().to_vec();
        counts.extend([
            ("window-mapped", self.windows.mapped),
            ("window-unmapped", self.windows.unmapped),
            ("window-emptied", self.windows.emptied),
            ("window-aside", self.windows.put_aside),
        ]);
        counts.extend(self.native.named());
        counts
    }
}

impl Vcpu {
    /// The counts so far.
    pub fn counts(&self) -> VcpuCounts {
        let context = &self.runner.context;
        let counts_instructions = self.runner.engine.counts_instructions();
        VcpuCounts {
            instructions: counts_instructions.then_some(context.counters.instructions),
            host_code: counts_instructions.then_some(HostCode {
                instructions: context.counters.host_instructions,
                bytes: context.counters.host_bytes,
            }),
            fast_paths: context.fast_paths.counts,
            space_loads: self.view.translations.loads(),
            shadow: self.view.translations.counts(),
            windows: self.view.translations.window_counts(),
            instruction_cache: self.runner.instructions.results.counts,
            stops: self.pending.checkpoints().what_stopped(),
            engine: self.runner.engine.counts(),
            native: self.runner.native.counts,
            repeated_deliveries: self.runner.fault_deliveries.repeated,
        }
    }
}
