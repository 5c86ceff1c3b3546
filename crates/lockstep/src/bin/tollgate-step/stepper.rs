//! A processor that takes on one state after the other.
//!
//! All RAM is display memory, for which the pages that an instruction has written can be queried.
//! So setting up and reading a state costs no more than the number of its bytes.

use crate::registers::Registers;
use crate::state::{After, Before, IDENTITY_TABLES, Mode};
use std::collections::BTreeMap;
use std::io;
use tollgate_emulate::cpuid::policy;
use tollgate_memory::{GuestMemory, Region, RegionKind};
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::BareMachine;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Cr0, Cr4, Efer, PhysicalAddress};

/// Size of the vCPU's code cache in bytes. No code runs twice.
const CODE_CACHE_BYTES: usize = 4 << 20;
/// Minimum RAM of a machine, below that of the states.
const LEAST_MEMORY: u64 = 2 << 20;

/// A machine that has only RAM.
struct Nothing;

impl BareMachine for Nothing {}

/// The processor and its memory.
pub struct Stepper {
    vcpu: Vcpu,
    /// RAM before an instruction.
    ram: Vec<u8>,
}

impl Stepper {
    /// A processor with `bytes` of RAM, a multiple of 4096.
    ///
    /// # Errors
    ///
    /// The host refuses memory.
    pub fn new(bytes: u64, verify_code: bool) -> io::Result<Self> {
        let mut memory = GuestMemory::new(LEAST_MEMORY).map_err(io::Error::other)?;
        let mut place = |start, bytes, kind| {
            let block = memory.new_block(bytes).map_err(io::Error::other)?;
            memory
                .set_region(Region {
                    start: PhysicalAddress(start),
                    bytes,
                    kind,
                    block: Some((block, 0)),
                })
                .map_err(io::Error::other)
        };
        place(0, bytes, RegionKind::Display)?;
        place(IDENTITY_TABLES, 3 * PAGE_SIZE, RegionKind::Ram)?;
        write_identity_tables(&mut memory);
        Ok(Self {
            vcpu: Vcpu::new(CpuState::at_reset(), memory, CODE_CACHE_BYTES, verify_code)?,
            ram: vec![0; bytes as usize],
        })
    }

    /// Executes one instruction.
    ///
    /// # Errors
    ///
    /// Such a state does not exist; the text says why.
    pub fn step(&mut self, before: &Before) -> Result<After, String> {
        let mut state = before.mode.initial();
        before.regs.put_into(&mut state)?;
        check(&state)?;
        let bytes = self.ram.len();
        if let Some((address, _)) = before.ram.iter().find(|it| it.0 >= bytes as u64) {
            return Err(format!(
                "ram: there is no byte {address:#x}, --memory is {} MiB",
                bytes >> 20
            ));
        }
        for (address, byte) in &before.ram {
            self.ram[*address as usize] = *byte;
            self.write(*address, *byte);
        }
        load_pdptes(&mut state, self.vcpu.memory_mut());
        // First leave any paging, so that no translation of other page tables remains.
        self.vcpu.change_state(|it| *it = CpuState::at_reset());
        self.vcpu.change_state(|it| *it = state);
        let result = self.vcpu.step_one(&mut Nothing);
        let ram = self.take_ram(before);
        let state = self.vcpu.state();
        let error = match &result {
            Err(VcpuStop::NotImplemented(why)) => Some(why.clone()),
            Err(VcpuStop::Requested(stop)) => Some(format!("the machine stopped: {stop:?}")),
            Err(VcpuStop::TripleFault(_)) | Ok(()) => None,
        };
        Ok(After {
            name: before.name.clone(),
            mode: Mode::of(state),
            regs: Registers::of(state),
            ram,
            exception: self.vcpu.raised_exception().map(|vector| vector as u8),
            halted: state.activity == Activity::Halted,
            shutdown: matches!(result, Err(VcpuStop::TripleFault(_))),
            error,
        })
    }

    /// The bytes that were given and those that have changed. RAM is zero afterwards.
    fn take_ram(&mut self, before: &Before) -> Vec<(u64, u8)> {
        let given = before.ram.iter().map(|(address, _)| *address);
        let mut told: BTreeMap<u64, u8> = given.map(|address| (address, 0)).collect();
        let last = self.ram.len() as u64 / PAGE_SIZE - 1;
        let mut bytes = [0; PAGE_SIZE as usize];
        for page in self.vcpu.memory_mut().take_dirty_pages(0, last) {
            let start = page * PAGE_SIZE;
            self.vcpu
                .memory_mut()
                .read(PhysicalAddress(start), &mut bytes);
            let old = &self.ram[start as usize..][..PAGE_SIZE as usize];
            if old == bytes {
                continue;
            }
            let pairs = (start..).zip(old.iter().zip(&bytes));
            told.extend(
                pairs
                    .filter(|(_, (old, new))| old != new)
                    .map(|(at, _)| (at, 0)),
            );
        }
        let mut byte = [0];
        for (address, value) in &mut told {
            self.vcpu
                .memory_mut()
                .read(PhysicalAddress(*address), &mut byte);
            *value = byte[0];
        }
        for address in told.keys() {
            self.ram[*address as usize] = 0;
            self.write(*address, 0);
        }
        told.into_iter().collect()
    }

    fn write(&mut self, address: u64, byte: u8) {
        self.vcpu
            .memory_mut()
            .write(PhysicalAddress(address), &[byte]);
    }
}

/// Writes four-level tables that map the first GiB onto itself by pages of 2 MiB, for all levels.
fn write_identity_tables(memory: &mut GuestMemory) {
    const TABLE: u64 = 0x27;
    const PAGE: u64 = 0xe7;
    let mut put = |table: u64, index: u64, entry: u64| {
        memory.write_u64(PhysicalAddress(table + index * 8), entry);
    };
    let [top, pointers, directory] = [0, 1, 2].map(|page| IDENTITY_TABLES + page * PAGE_SIZE);
    put(top, 0, pointers | TABLE);
    put(pointers, 0, directory | TABLE);
    (0..512).for_each(|index| put(directory, index, index << 21 | PAGE));
}

/// Loads the four entries that PAE paging keeps in registers, as MOV to CR3 does.
fn load_pdptes(state: &mut CpuState, memory: &GuestMemory) {
    let is_pae = state.is_paging() && state.cr4().contains(Cr4::PAE) && !state.is_long_mode();
    if is_pae {
        let table = state.cr3 & 0xffff_ffe0;
        let entry = |index: u64| memory.read_u64(PhysicalAddress(table + index * 8));
        state.pdpte = [0, 1, 2, 3].map(entry);
    }
}

/// Refuses states that no processor can have.
fn check(state: &CpuState) -> Result<(), String> {
    let (cr0, cr4, efer) = (state.cr0(), state.cr4(), state.efer());
    let is_long = efer.contains(Efer::LMA);
    let offered = policy(state).cr4_mask();
    let rules = [
        (
            cr0.contains(Cr0::PG) && !cr0.contains(Cr0::PE),
            "cr0: PG without PE",
        ),
        (
            is_long != (cr0.contains(Cr0::PG) && efer.contains(Efer::LME)),
            "efer: LMA is set when LME and CR0.PG are, and only then",
        ),
        (
            is_long && !cr4.contains(Cr4::PAE),
            "cr4: long mode without PAE",
        ),
        (
            state.cr0 >> 32 != 0 || !offered.contains(cr4),
            "cr0, cr4: a bit that this processor does not have",
        ),
        (
            state.flags().bits() & tollgate_x86::Flags::VM.bits() != 0
                && (is_long || !cr0.contains(Cr0::PE)),
            "rflags: VM outside of protected mode",
        ),
        (
            !is_long && state.gpr.iter().any(|value| value >> 32 != 0),
            "a general register has more than 32 bits outside of long mode",
        ),
        (
            match state.is_64_bit() {
                true => !is_canonical(state.rip),
                false => state.rip >> 32 != 0,
            },
            "rip: not a possible address of code in this mode",
        ),
    ];
    match rules.into_iter().find(|(is_broken, _)| *is_broken) {
        Some((_, why)) => Err(why.to_owned()),
        None => Ok(()),
    }
}
