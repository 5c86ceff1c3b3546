//! Runs a test case in a guest, through the real monitor.
//!
//! The guest has PAE paging, or is in long mode; it runs ring 3 code in the case's segments, and
//! has an interrupt table whose gates all lead to a stub in ring 0 that stops the machine. The
//! exception's frame on the ring 0 stack and the registers are the outcome.

use crate::bench::Bench;
use crate::case::{Case, Input, Outcome, normalize};
use crate::layout::{
    Access, HIGH_WINDOW, LOCALS, PAGE, PAGE_ACCESS, USER_CODE, USER_CODE64, USER_DATA, WINDOW,
    WINDOW_BYTES, World, descriptor_bytes, local_segment, segment_of,
};
use std::io;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

/// Physical address of the page directory pointer table; directories and tables follow.
const TABLES: u64 = 0x20_0000;
/// Physical address of long mode's top table; the other tables follow.
const LONG_TABLES: u64 = 0x21_0000;
/// Physical address of the window.
const WINDOW_PHYSICAL: u64 = 0x30_0000;
/// Physical and linear address of the supervisor's pages.
const SYSTEM_PHYSICAL: u64 = 0x38_0000;
const SYSTEM: u64 = 0xe5b7_0000;
/// Physical and linear address of the supervisor's pages in long mode.
const LONG_SYSTEM_PHYSICAL: u64 = 0x39_0000;
const LONG_SYSTEM: u64 = 0xffff_9000_e5b7_0000;
/// Offsets in the supervisor's pages.
const GDT: u64 = 0;
const LDT: u64 = 0x100;
const TSS: u64 = 0x200;
const IDT: u64 = 0x1000;
const HANDLERS: u64 = 0x2000;
const STACK_TOP: u64 = 0x4000;
const SYSTEM_PAGES: u64 = 4;

const KERNEL_CODE64: u16 = 8;
const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;

/// Where a guest runs a case.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Continuation {
    /// In the machine that has run the cases before.
    #[default]
    Same,
    /// In a new machine, which continues from the state of the old one as it does from a snapshot:
    /// the state passes through its form in a file, and memory is mapped from a file.
    Restored,
}

/// The guest, ready to run cases.
pub struct Guest {
    bench: Bench,
    vcpu: Vcpu,
    start: CpuState,
    map: &'static RegisterMap,
    /// Whether 16- and 32-bit code runs in compatibility mode.
    compatibility: bool,
    /// Whether long mode is active.
    long: bool,
    continuation: Continuation,
    window: Box<[u8; WINDOW_BYTES]>,
}

fn system_segment(base: u64, limit: u32, attributes: u16, selector: u16) -> Segment {
    Segment {
        base,
        limit,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

fn write_u64(memory: &mut GuestMemory, address: u64, value: u64) {
    memory.write(PhysicalAddress(address), &value.to_le_bytes());
}

/// Maps a page of the guest below one of the two top tables; the tables follow each other in
/// memory.
fn map_page(
    memory: &mut GuestMemory,
    (top, next): (u64, &mut u64),
    linear: u64,
    physical: u64,
    bits: u64,
) {
    let table_of = |memory: &mut GuestMemory, slot: u64, bits: u64, next: &mut u64| {
        let entry = memory.read_u64(PhysicalAddress(slot));
        if entry & 1 != 0 {
            return entry & !0xfff;
        }
        let table = *next;
        *next += PAGE as u64;
        write_u64(memory, slot, table | bits);
        table
    };
    let index = |shift: u64| (linear >> shift & 511) * 8;
    let directory = if top == LONG_TABLES {
        let pointers = table_of(memory, top + index(39), 7, next);
        table_of(memory, pointers + index(30), 7, next)
    } else {
        table_of(memory, top + index(30), 1, next)
    };
    let table = table_of(memory, directory + index(21), 7, next);
    write_u64(memory, table + index(12), physical | bits);
}

fn build_tables(memory: &mut GuestMemory) {
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 2;
    const USER: u64 = 4;
    const ACCESSED_DIRTY: u64 = 0x60;
    const NO_EXECUTE: u64 = 1 << 63;
    let mut next = TABLES + PAGE as u64;
    let mut long_next = LONG_TABLES + PAGE as u64;
    for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
        let bits = match access {
            Access::None => continue,
            Access::Code => PRESENT | USER,
            Access::Read => PRESENT | USER | NO_EXECUTE,
            Access::Write => PRESENT | WRITABLE | USER | NO_EXECUTE,
        };
        let offset = (page * PAGE) as u64;
        for (top, window) in [
            (TABLES, WINDOW),
            (LONG_TABLES, WINDOW),
            (LONG_TABLES, HIGH_WINDOW),
        ] {
            let next = if top == TABLES {
                &mut next
            } else {
                &mut long_next
            };
            map_page(
                memory,
                (top, next),
                window + offset,
                WINDOW_PHYSICAL + offset,
                bits | ACCESSED_DIRTY,
            );
        }
    }
    for page in 0..SYSTEM_PAGES {
        let offset = page * PAGE as u64;
        map_page(
            memory,
            (TABLES, &mut next),
            SYSTEM + offset,
            SYSTEM_PHYSICAL + offset,
            PRESENT | WRITABLE | ACCESSED_DIRTY,
        );
        map_page(
            memory,
            (LONG_TABLES, &mut long_next),
            LONG_SYSTEM + offset,
            LONG_SYSTEM_PHYSICAL + offset,
            PRESENT | WRITABLE | ACCESSED_DIRTY,
        );
    }
}

/// Writes the tables and handlers in the supervisor's pages, for legacy or for long mode.
fn build_system(memory: &mut GuestMemory, long: bool) {
    let (physical, system) = if long {
        (LONG_SYSTEM_PHYSICAL, LONG_SYSTEM)
    } else {
        (SYSTEM_PHYSICAL, SYSTEM)
    };
    let gdt = physical + GDT;
    write_u64(
        memory,
        gdt + u64::from(KERNEL_CODE64),
        0x00af_9b00_0000_ffff,
    );
    write_u64(memory, gdt + u64::from(KERNEL_CODE), 0x00cf_9b00_0000_ffff);
    write_u64(memory, gdt + u64::from(KERNEL_DATA), 0x00cf_9300_0000_ffff);
    for selector in [USER_CODE, USER_DATA, USER_CODE64] {
        if let Some(segment) = segment_of(selector) {
            write_u64(
                memory,
                gdt + u64::from(selector & !7),
                descriptor_bytes(&segment),
            );
        }
    }
    for index in 0..LOCALS.len() {
        write_u64(
            memory,
            physical + LDT + index as u64 * 8,
            descriptor_bytes(&local_segment(index)),
        );
    }
    let tss = physical + TSS;
    if long {
        write_u64(memory, tss + 4, system + STACK_TOP);
    } else {
        memory.write_u32(PhysicalAddress(tss + 4), (system + STACK_TOP) as u32);
        memory.write_u32(PhysicalAddress(tss + 8), u32::from(KERNEL_DATA));
    }
    // The I/O permission map lies beyond the limit: ring 3 may access no port.
    memory.write_u32(PhysicalAddress(tss + 0x64), 0xffff_0000);
    for vector in 0..256u64 {
        let handler = system + HANDLERS + vector * 4;
        // As on Linux, programs may raise #BP and #OF themselves.
        let rights: u64 = if matches!(vector, 3 | 4) { 0xee } else { 0x8e };
        let selector = if long { KERNEL_CODE64 } else { KERNEL_CODE };
        let gate = handler & 0xffff
            | u64::from(selector) << 16
            | rights << 40
            | (handler >> 16 & 0xffff) << 48;
        let place = physical + IDT + vector * if long { 16 } else { 8 };
        write_u64(memory, place, gate);
        if long {
            write_u64(memory, place + 8, handler >> 32);
        }
        // out 0xf4, al; hlt
        memory.write(
            PhysicalAddress(physical + HANDLERS + vector * 4),
            &[0xe6, 0xf4, 0xf4, 0xf4],
        );
    }
}

/// The registers that do not depend on the world, in legacy or in long mode.
fn start_state(long: bool) -> CpuState {
    let mut state = CpuState::at_reset();
    let system = if long { LONG_SYSTEM } else { SYSTEM };
    // The bits PE, MP, ET, NE, WP, AM and PG.
    state.cr0 = 0x8005_0033;
    // The bits PAE, OSFXSR, OSXMMEXCPT and OSXSAVE.
    state.cr4 = 0x4_0620;
    state.efer = 1 << 11;
    state.cr3 = TABLES;
    let policy = tollgate_emulate::cpuid::policy_of(tollgate_x86::CpuModel::Host);
    state.xcr0 = policy.xcr0_mask();
    state.gdtr.base = system + GDT;
    state.gdtr.limit = 0x3f;
    state.idtr.base = system + IDT;
    state.idtr.limit = 0x7ff;
    if long {
        // The bits LME and LMA.
        state.efer |= 0x500;
        state.cr3 = LONG_TABLES;
        state.idtr.limit = 0xfff;
        if policy.offers(iced_x86::CpuidFeature::FSGSBASE) {
            state.cr4 |= 1 << 16;
        }
    }
    state.ldtr = system_segment(system + LDT, LOCALS.len() as u32 * 8 - 1, 0x82, 0x30);
    state.tr = system_segment(system + TSS, 0x67, 0x8b, 0x38);
    state
}

/// A vCPU with this memory.
fn new_vcpu(state: CpuState, memory: GuestMemory, map: &'static RegisterMap) -> io::Result<Vcpu> {
    let mut vcpu = Vcpu::new(state, memory, 4 << 20, true)?;
    vcpu.set_register_map(map);
    vcpu.change_settings(|settings| {
        settings.memory_access = tollgate_test_support::memory_access();
    });
    Ok(vcpu)
}

impl Guest {
    /// A guest whose registers are mapped to host registers by `map`; 64-bit code has its own map.
    ///
    /// # Errors
    ///
    /// The host refused memory.
    pub fn new(map: &'static RegisterMap) -> io::Result<Self> {
        let mut memory = GuestMemory::new(4 << 20).map_err(io::Error::other)?;
        build_tables(&mut memory);
        build_system(&mut memory, false);
        build_system(&mut memory, true);
        let mut start = start_state(false);
        for (index, value) in start.pdpte.iter_mut().enumerate() {
            *value = memory.read_u64(PhysicalAddress(TABLES + index as u64 * 8));
        }
        Ok(Self {
            bench: Bench::default(),
            vcpu: new_vcpu(start.clone(), memory, map)?,
            start,
            map,
            compatibility: false,
            long: false,
            continuation: Continuation::Same,
            window: Box::new([0; WINDOW_BYTES]),
        })
    }

    /// The content of the window when it was last read.
    pub fn memory(&self) -> &[u8; WINDOW_BYTES] {
        &self.window
    }

    /// Reads the window from the guest's memory.
    pub fn read_memory(&mut self) {
        self.vcpu
            .memory_mut()
            .read(PhysicalAddress(WINDOW_PHYSICAL), &mut self.window[..]);
    }

    /// Writes to the window.
    pub fn write_memory(&mut self, offset: u16, bytes: &[u8]) {
        let address = PhysicalAddress(WINDOW_PHYSICAL + u64::from(offset));
        self.vcpu.memory_mut().write(address, bytes);
    }

    /// Runs 16- and 32-bit code in compatibility mode of a 64-bit system from now on, as it runs
    /// natively.
    pub fn use_compatibility_mode(&mut self) {
        self.compatibility = true;
    }

    /// Decides where the guest runs from now on.
    pub fn continue_in(&mut self, continuation: Continuation) {
        self.continuation = continuation;
    }

    /// Continues in a new machine, as after the restore of a snapshot.
    fn restore(&mut self) -> io::Result<()> {
        let registers = serde_json::to_vec(self.vcpu.state())?;
        let non_register = serde_json::to_vec(&self.vcpu.non_register_state())?;
        let memory = tollgate_test_support::restored(self.vcpu.memory_mut())?;
        let registers: CpuState = serde_json::from_slice(&registers)?;
        let mut vcpu = new_vcpu(CpuState::at_reset(), memory, self.map_of_mode())?;
        vcpu.change_state(|state| *state = registers);
        vcpu.forget_translations();
        vcpu.set_non_register_state(serde_json::from_slice(&non_register)?);
        vcpu.clock_changed();
        self.vcpu = vcpu;
        Ok(())
    }

    /// The map of registers in the present mode.
    fn map_of_mode(&self) -> &'static RegisterMap {
        if self.long {
            &RegisterMap::LEGACY
        } else {
            self.map
        }
    }

    /// Switches between legacy and long mode, from outside the guest.
    fn enter_mode(&mut self, long: bool) {
        if self.long == long {
            return;
        }
        self.long = long;
        let start = if long {
            start_state(true)
        } else {
            self.start.clone()
        };
        self.vcpu.change_state(|state| *state = start);
        self.vcpu.set_register_map(self.map_of_mode());
    }

    /// Runs the code in the window once.
    pub fn run(&mut self, case: &Case, input: &Input) -> Outcome {
        self.enter_mode(case.world.is_long() || self.compatibility);
        let start = &self.start;
        let selectors = case.world.selectors();
        self.vcpu.change_state(|state| {
            state.gpr = input.gpr;
            state.flags = u64::from(input.flags | 0x200) & !2;
            state.rip = crate::encode::rip_of(case.world, case.at);
            for register in SegmentRegister::ALL {
                *state.segment_mut(register) =
                    segment_of(selectors[register as usize]).unwrap_or_default();
            }
            if case.world.is_long() {
                for (register, base) in [SegmentRegister::Fs, SegmentRegister::Gs]
                    .into_iter()
                    .zip(case.world.thread_bases())
                {
                    state.segment_mut(register).base = base;
                }
            }
            state.activity = start.activity;
            state.shadow_rip = u64::MAX;
            state.cr2 = 0;
            state.vector.0.copy_from_slice(&input.vector[..]);
        });
        if self.continuation == Continuation::Restored
            && let Err(error) = self.restore()
        {
            self.bench.complaint = format!("the guest cannot be restored: {error}");
            return Outcome::without_registers(Outcome::GAVE_UP);
        }
        self.bench.start();
        let stop = self.vcpu.run(&mut self.bench);
        match stop {
            VcpuStop::Requested(StopRequest::DebugExit(_)) => self.outcome(case.world),
            VcpuStop::Requested(_) => Outcome::without_registers(Outcome::ENDLESS),
            VcpuStop::TripleFault(why) | VcpuStop::NotImplemented(why) => {
                self.bench.complaint = why;
                Outcome::without_registers(Outcome::GAVE_UP)
            }
        }
    }

    /// The reason that the monitor gave when it last failed.
    pub fn complaint(&self) -> &str {
        &self.bench.complaint
    }

    fn outcome(&mut self, world: World) -> Outcome {
        let state = self.vcpu.state();
        let long = self.long;
        let cpu_rip = state.rip;
        let mut vector_state = Box::new(state.vector.0);
        let gpr = state.gpr;
        let selectors = SegmentRegister::ALL.map(|register| state.segment(register).selector.0);
        let bases =
            [SegmentRegister::Fs, SegmentRegister::Gs].map(|register| state.segment(register).base);
        let (cr2, esp) = (state.cr2, gpr[4]);
        normalize(&mut vector_state, world);
        let (physical, system, size) = if long {
            (LONG_SYSTEM_PHYSICAL, LONG_SYSTEM, 8)
        } else {
            (SYSTEM_PHYSICAL, SYSTEM, 4)
        };
        let vector = (cpu_rip.wrapping_sub(system + HANDLERS) / 4) as u8;
        let has_error = matches!(vector, 8 | 10..=14 | 17);
        let frame = physical + esp.wrapping_sub(system);
        let memory = self.vcpu.memory_mut();
        let word = |index: u64| {
            let value = memory.read_u64(PhysicalAddress(frame + index * size));
            if long { value } else { value & 0xffff_ffff }
        };
        let skip = u64::from(has_error);
        let mut registers = gpr;
        registers[4] = word(skip + 3);
        Outcome {
            vector,
            error: if has_error { word(0) as u32 } else { 0 },
            cr2: if vector == 14 { cr2 } else { 0 },
            rip: word(skip),
            gpr: registers,
            flags: word(skip + 2) as u32,
            selectors: [
                selectors[0],
                word(skip + 1) as u16,
                word(skip + 4) as u16,
                selectors[3],
                selectors[4],
                selectors[5],
            ],
            bases: if world.is_long() { bases } else { [0; 2] },
            vector_state,
        }
    }
}
