//! The code in a guest, through the real monitor.
//!
//! A guest with PAE paging, ring 3 code in the case's segments, and an interrupt table
//! whose gates all lead to a stub in ring 0 that stops the machine. The exception's
//! frame on the ring 0 stack and the registers are the outcome.

use crate::bench::Bench;
use crate::case::{Case, Input, Outcome, normalize};
use crate::layout::{
    Access, LOCALS, PAGE, PAGE_ACCESS, USER_CODE, USER_DATA, WINDOW, WINDOW_BYTES, World,
    descriptor_bytes, local_segment, segment_of,
};
use std::io;
use tollgate_engine::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

/// Physical address of the page directory pointer table; directories and tables follow.
const TABLES: u64 = 0x20_0000;
/// Physical address of the window.
const WINDOW_PHYSICAL: u64 = 0x30_0000;
/// Physical and linear address of the supervisor's pages.
const SYSTEM_PHYSICAL: u64 = 0x38_0000;
const SYSTEM: u32 = 0xe5b7_0000;
/// Offsets in the supervisor's pages.
const GDT: u32 = 0;
const LDT: u32 = 0x100;
const TSS: u32 = 0x200;
const IDT: u32 = 0x1000;
const HANDLERS: u32 = 0x2000;
const STACK_TOP: u32 = 0x4000;
const SYSTEM_PAGES: u64 = 4;

const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;

/// The guest, ready to run cases.
pub struct Guest {
    vcpu: Vcpu<Bench>,
    start: CpuState,
    window: Box<[u8; WINDOW_BYTES]>,
}

fn system_segment(base: u32, limit: u32, attributes: u16, selector: u16) -> Segment {
    Segment {
        base: u64::from(base),
        limit,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

fn write_u64(memory: &mut GuestMemory, address: u64, value: u64) {
    memory.write(PhysicalAddress(address), &value.to_le_bytes());
}

/// Maps a page of the guest's; tables lie one behind the other from [`TABLES`].
fn map_page(memory: &mut GuestMemory, next: &mut u64, linear: u32, physical: u64, bits: u64) {
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
    let linear = u64::from(linear);
    let directory = table_of(memory, TABLES + (linear >> 30) * 8, 1, next);
    let table = table_of(memory, directory + (linear >> 21 & 511) * 8, 7, next);
    write_u64(memory, table + (linear >> 12 & 511) * 8, physical | bits);
}

fn build_tables(memory: &mut GuestMemory) {
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 2;
    const USER: u64 = 4;
    const ACCESSED_DIRTY: u64 = 0x60;
    const NO_EXECUTE: u64 = 1 << 63;
    let mut next = TABLES + PAGE as u64;
    for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
        let bits = match access {
            Access::None => continue,
            Access::Code => PRESENT | USER,
            Access::Read => PRESENT | USER | NO_EXECUTE,
            Access::Write => PRESENT | WRITABLE | USER | NO_EXECUTE,
        };
        let offset = (page * PAGE) as u32;
        map_page(
            memory,
            &mut next,
            WINDOW + offset,
            WINDOW_PHYSICAL + u64::from(offset),
            bits | ACCESSED_DIRTY,
        );
    }
    for page in 0..SYSTEM_PAGES {
        let offset = page * PAGE as u64;
        map_page(
            memory,
            &mut next,
            SYSTEM + offset as u32,
            SYSTEM_PHYSICAL + offset,
            PRESENT | WRITABLE | ACCESSED_DIRTY,
        );
    }
}

fn build_system(memory: &mut GuestMemory) {
    let gdt = SYSTEM_PHYSICAL + u64::from(GDT);
    write_u64(memory, gdt + u64::from(KERNEL_CODE), 0x00cf_9b00_0000_ffff);
    write_u64(memory, gdt + u64::from(KERNEL_DATA), 0x00cf_9300_0000_ffff);
    for selector in [USER_CODE, USER_DATA] {
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
            SYSTEM_PHYSICAL + u64::from(LDT) + index as u64 * 8,
            descriptor_bytes(&local_segment(index)),
        );
    }
    let tss = SYSTEM_PHYSICAL + u64::from(TSS);
    memory.write_u32(PhysicalAddress(tss + 4), SYSTEM + STACK_TOP);
    memory.write_u32(PhysicalAddress(tss + 8), u32::from(KERNEL_DATA));
    // The I/O permission map lies behind the limit: no port is ring 3's.
    memory.write_u32(PhysicalAddress(tss + 0x64), 0xffff_0000);
    for vector in 0..256u32 {
        let handler = SYSTEM + HANDLERS + vector * 4;
        // As on Linux, programs may raise #BP and #OF themselves.
        let rights: u64 = if matches!(vector, 3 | 4) { 0xee } else { 0x8e };
        let gate = u64::from(handler & 0xffff)
            | u64::from(KERNEL_CODE) << 16
            | rights << 40
            | u64::from(handler >> 16) << 48;
        write_u64(
            memory,
            SYSTEM_PHYSICAL + u64::from(IDT) + u64::from(vector) * 8,
            gate,
        );
        // out 0xf4, al; hlt
        memory.write(
            PhysicalAddress(SYSTEM_PHYSICAL + u64::from(HANDLERS + vector * 4)),
            &[0xe6, 0xf4, 0xf4, 0xf4],
        );
    }
}

fn start_state() -> CpuState {
    let mut state = CpuState::at_reset();
    // PE, MP, ET, NE, WP, AM, PG.
    state.cr0 = 0x8005_0033;
    // PAE, OSFXSR, OSXMMEXCPT, OSXSAVE.
    state.cr4 = 0x4_0620;
    state.efer = 1 << 11;
    state.cr3 = TABLES;
    state.xcr0 = tollgate_emulate::cpuid::policy_of(tollgate_x86::CpuModel::Host).xcr0_mask();
    state.gdtr.base = u64::from(SYSTEM + GDT);
    state.gdtr.limit = 0x3f;
    state.idtr.base = u64::from(SYSTEM + IDT);
    state.idtr.limit = 0x7ff;
    state.ldtr = system_segment(SYSTEM + LDT, LOCALS.len() as u32 * 8 - 1, 0x82, 0x30);
    state.tr = system_segment(SYSTEM + TSS, 0x67, 0x8b, 0x38);
    state
}

impl Guest {
    /// A guest whose registers live as `map` says.
    ///
    /// # Errors
    /// The host refused memory.
    pub fn new(map: &'static RegisterMap) -> io::Result<Self> {
        let mut memory = GuestMemory::new(4 << 20).map_err(io::Error::other)?;
        build_tables(&mut memory);
        build_system(&mut memory);
        let mut start = start_state();
        for (index, value) in start.pdpte.iter_mut().enumerate() {
            *value = memory.read_u64(PhysicalAddress(TABLES + index as u64 * 8));
        }
        let mut vcpu = Vcpu::new(start.clone(), memory, Bench::default(), 4 << 20, true)?;
        vcpu.set_register_map(map);
        Ok(Self {
            vcpu,
            start,
            window: Box::new([0; WINDOW_BYTES]),
        })
    }

    /// The window as it was when last read.
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

    /// Runs the code, which lies in the window, once.
    pub fn run(&mut self, case: &Case, input: &Input) -> Outcome {
        let start = &self.start;
        let selectors = case.world.selectors();
        self.vcpu.change_state(|state| {
            state.gpr = [0; 16];
            for (register, value) in state.gpr.iter_mut().zip(input.gpr) {
                *register = u64::from(value);
            }
            state.flags = u64::from(input.flags | 0x200) & !2;
            state.rip = u64::from(case.at);
            if case.world == World::Flat32 {
                state.rip += u64::from(WINDOW);
            }
            for register in SegmentRegister::ALL {
                *state.segment_mut(register) =
                    segment_of(selectors[register as usize]).unwrap_or_default();
            }
            state.activity = start.activity;
            state.shadow_rip = u64::MAX;
            state.cr2 = 0;
            state.vector.0.copy_from_slice(&input.vector[..]);
        });
        self.vcpu.platform_mut().start();
        let stop = self.vcpu.run();
        match stop {
            VcpuStop::Requested(StopRequest::DebugExit(_)) => self.outcome(),
            VcpuStop::Requested(_) => Outcome::without_registers(Outcome::ENDLESS),
            VcpuStop::TripleFault(why) | VcpuStop::NotImplemented(why) => {
                self.vcpu.platform_mut().complaint = why;
                Outcome::without_registers(Outcome::GAVE_UP)
            }
        }
    }

    /// What the monitor said when it last gave up.
    pub fn complaint(&self) -> &str {
        &self.vcpu.platform().complaint
    }

    fn outcome(&mut self) -> Outcome {
        let state = self.vcpu.state();
        let cpu_rip = state.rip as u32;
        let mut vector_state = Box::new(state.vector.0);
        let gpr = state.gpr;
        let selectors = SegmentRegister::ALL.map(|register| state.segment(register).selector.0);
        let (cr2, esp) = (state.cr2 as u32, gpr[4] as u32);
        normalize(&mut vector_state);
        let vector = (cpu_rip.wrapping_sub(SYSTEM + HANDLERS) / 4) as u8;
        let has_error = matches!(vector, 8 | 10..=14 | 17);
        let frame = SYSTEM_PHYSICAL + u64::from(esp.wrapping_sub(SYSTEM));
        let memory = self.vcpu.memory_mut();
        let word = |index: u64| memory.read_u32(PhysicalAddress(frame + index * 4));
        let skip = u64::from(has_error);
        let mut registers = [0; 8];
        for (register, value) in registers.iter_mut().zip(gpr) {
            *register = value as u32;
        }
        registers[4] = word(skip + 3);
        Outcome {
            vector,
            error: if has_error { word(0) } else { 0 },
            cr2: if vector == 14 { cr2 } else { 0 },
            eip: word(skip),
            gpr: registers,
            flags: word(skip + 2),
            selectors: [
                selectors[0],
                word(skip + 1) as u16,
                word(skip + 4) as u16,
                selectors[3],
                selectors[4],
                selectors[5],
            ],
            vector_state,
        }
    }
}
