//! Tollgate's side: a vCPU that is stepped, and accesses to its memory without side effects.

use crate::cpu_dump::CpuDump;
use crate::device_log::{DeviceByte, DeviceLog};
use crate::floppy_dma::Written;
use crate::qemu::Qemu;
use crate::registers::Registers;
use crate::replay::Replay;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};
use std::io;
use tollgate_emulate::operand::{read_register, system_mask};
use tollgate_exits::ExitKind;
use tollgate_machine::boot::firmware;
use tollgate_machine::config::VmConfig;
use tollgate_machine::devices::vga::screen::Screen;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_monitor::code_address;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_x86::paging::{AccessKind, PageTableMemory, PagingRegisters, Privilege};
use tollgate_x86::{Attributes, CpuState, Descriptor, Gpr, LinearAddress, PhysicalAddress, Vector};

/// Size in bytes of the code cache of the vCPU that is compared.
const CODE_CACHE_BYTES: usize = 64 << 20;

/// The first vector that does not belong to exceptions.
const FIRST_FREE_VECTOR: u8 = 32;
const NON_MASKABLE: u8 = Vector::NonMaskableInterrupt as u8;
/// The first vector that firmware assigns to devices.
const FIRST_REAL_MODE_VECTOR: u8 = 8;
/// The vectors that firmware assigns to the first 8259. DOS extenders do not change this in
/// protected mode: exceptions with these vectors have an error code in their frames, which
/// distinguishes them from interrupts.
const FIRMWARE_VECTORS: std::ops::RangeInclusive<u8> = 8..=15;

/// Tollgate's processor in a PC whose interrupts are never delivered.
pub struct Subject {
    machine: Replay,
    vcpu: Vcpu,
    info: InstructionInfoFactory,
}

/// Guest memory that an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The linear address of the first byte.
    pub linear: u64,
    /// Size in bytes; that of one element for a repeated instruction.
    pub size: u64,
    /// Whether the instruction may write it.
    pub written: bool,
}

impl Subject {
    /// Makes a vCPU with exactly the state of QEMU's processor.
    ///
    /// # Errors
    ///
    /// QEMU's state cannot be read, or the host refuses memory.
    pub fn new(qemu: &mut Qemu, config: &VmConfig) -> io::Result<Self> {
        let dump: CpuDump = qemu.registers()?;
        let mut memory = GuestMemory::new(config.memory_bytes).map_err(io::Error::other)?;
        let rom = match &config.firmware {
            Some(path) => Some(firmware::load(path, &mut memory).map_err(io::Error::other)?),
            None => None,
        };
        if rom.is_none() {
            // At the reset vector, both sides start with zeroed RAM.
            qemu.copy_memory(&mut memory)?;
        }
        let mut state = CpuState::at_reset();
        dump.put_into(&mut state, &memory);
        let mut pc = Pc::new(config, memory.clone(), Box::new(io::sink()));
        if let Some(rom) = rom {
            pc.set_firmware(Some(rom)).map_err(io::Error::other)?;
        }
        let mut vcpu = Vcpu::new(state, memory, CODE_CACHE_BYTES, config.verify_code)?;
        pc.set_debug_output(Box::new(io::sink()));
        // This makes the engine distribute the flags to its own places.
        vcpu.change_state(|_| ());
        Ok(Self {
            machine: Replay::new(pc),
            vcpu,
            info: InstructionInfoFactory::new(),
        })
    }

    /// The registers at the present boundary.
    pub fn registers(&self) -> Registers {
        Registers::of(self.vcpu.state())
    }

    /// Number of exceptions delivered so far.
    pub fn exceptions(&self) -> u64 {
        let counts = self.vcpu.exit_counts();
        counts.get(ExitKind::GuestException) + counts.get(ExitKind::GuestPageFault)
    }

    /// Linear address of the top of the stack.
    pub fn stack_top(&self) -> u64 {
        let (state, ss) = (self.vcpu.state(), self.vcpu.state().ss());
        let pointer = state.gpr[Gpr::Rsp as usize];
        if state.is_64_bit() {
            return pointer;
        }
        let mask = if ss.is_big() { 0xffff_ffff } else { 0xffff };
        ss.base.wrapping_add(pointer & mask) & 0xffff_ffff
    }

    /// Linear address of the next instruction.
    pub fn linear(&self) -> u64 {
        code_address(self.vcpu.state())
    }

    /// The next instruction; `None` if its fetch faults.
    pub fn next_instruction(&mut self) -> Option<Instruction> {
        self.vcpu.next_instruction()
    }

    /// Executes one instruction.
    ///
    /// # Errors
    ///
    /// Those of [`Vcpu::step_one`].
    pub fn step(&mut self) -> Result<(), VcpuStop> {
        self.vcpu.step_one(&mut self.machine)
    }

    /// Sets the accesses of QEMU's devices during the next instruction.
    pub fn expect_devices(&mut self, devices: &DeviceLog) {
        self.machine.written.clear();
        self.machine.expected.clone_from(devices);
    }

    /// The bytes that the last instruction wrote to our devices.
    pub fn told_devices(&self) -> &[DeviceByte] {
        &self.machine.written
    }

    /// Memory that the floppy drive has written, as the guest now knows.
    pub fn take_moved(&mut self) -> Option<Written> {
        self.machine.moved.take()
    }

    /// The lines of a text screen.
    pub fn screen_lines(&mut self) -> Vec<String> {
        let Screen::Text(text) = self.machine.pc.screen() else {
            return Vec::new();
        };
        let lines = text.characters.chunks(text.columns.max(1));
        lines
            .map(|line| line.iter().map(|&code| shown(code)).collect())
            .collect()
    }

    /// Delivers an interrupt that QEMU delivered.
    ///
    /// # Errors
    ///
    /// Those of [`Vcpu::deliver_interrupt`].
    pub fn interrupt(&mut self, vector: u8) -> Result<(), VcpuStop> {
        self.vcpu.deliver_interrupt(&mut self.machine, vector)
    }

    /// Restores the registers after an instruction that QEMU refused, and raises #GP(0) for it.
    ///
    /// # Errors
    ///
    /// Those of [`Vcpu::step_one`].
    pub fn refuse(&mut self, before: &Registers) -> Result<(), VcpuStop> {
        self.vcpu.change_state(|state| before.put_all(state));
        self.vcpu.deliver_general_protection(&mut self.machine)
    }

    /// The vector whose handler starts at CS:EIP of these registers: that of NMI or, if `maskable`,
    /// one that devices use.
    pub fn vector_of_handler(&mut self, registers: &Registers, maskable: bool) -> Option<u8> {
        let idtr = self.vcpu.state().idtr;
        let protected = self.vcpu.state().is_protected();
        let long = self.vcpu.state().is_long_mode();
        let (first, size) = if long {
            (FIRST_FREE_VECTOR, 16)
        } else if protected {
            (FIRST_FREE_VECTOR, 8)
        } else {
            (FIRST_REAL_MODE_VECTOR, 4)
        };
        let maskable_vectors = (first..=u8::MAX).chain(FIRMWARE_VECTORS);
        let candidates = maskable_vectors.filter(|_| maskable).chain([NON_MASKABLE]);
        candidates.into_iter().find(|&vector| {
            let offset = u32::from(vector) * size;
            if offset + size - 1 > u32::from(idtr.limit) {
                return false;
            }
            let mut bytes = [0; 16];
            let Some(physical) = self.physical(idtr.base.wrapping_add(offset.into())) else {
                return false;
            };
            if !self.read(physical, &mut bytes[..size as usize]) {
                return false;
            }
            let image = u128::from_le_bytes(bytes);
            let gate = Descriptor(image as u64);
            if protected {
                let upper = if long { (image >> 64) as u64 } else { 0 };
                gate.attributes().contains(Attributes::PRESENT)
                    && upper << 32 | u64::from(gate.gate_offset()) == registers.rip
                    && gate.gate_selector().0 & !3 == registers.selectors[1] & !3
            } else {
                [bytes[0], bytes[1]] == (registers.rip as u16).to_le_bytes()
                    && [bytes[2], bytes[3]] == registers.selectors[1].to_le_bytes()
            }
        })
    }

    /// Changes registers of the processor.
    pub fn change(&mut self, change: impl FnOnce(&mut CpuState)) {
        self.vcpu.change_state(change);
    }

    /// Memory operands of an instruction, with the present registers.
    pub fn accesses(&mut self, instruction: &Instruction) -> Vec<Access> {
        let state = self.vcpu.state();
        let used = self.info.info(instruction).used_memory();
        used.iter()
            .filter(|memory| {
                memory.access() != OpAccess::NoMemAccess && memory.access() != OpAccess::None
            })
            .filter_map(|memory| {
                let value = |register: Register, _, _| Some(register_value(state, register));
                let linear = memory.virtual_address(0, value)? & system_mask(state);
                let written = !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
                let size = (memory.memory_size().size() as u64).max(1);
                Some(Access {
                    linear,
                    size,
                    written,
                })
            })
            .collect()
    }

    /// The physical address of a linear address, if it is mapped; no accessed bit is set.
    pub fn physical(&mut self, linear: u64) -> Option<PhysicalAddress> {
        let registers = PagingRegisters::of(self.vcpu.state());
        let mut tables = Tables(self.vcpu.memory_mut());
        let linear = LinearAddress(linear);
        let found = registers.walk(&mut tables, linear, AccessKind::Read, Privilege::Supervisor);
        Some(found.ok()?.physical)
    }

    /// Whether the address is mapped to something other than RAM.
    pub fn is_device(&mut self, linear: u64) -> bool {
        let Some(physical) = self.physical(linear) else {
            return false;
        };
        self.vcpu
            .memory_mut()
            .ram()
            .host_page(physical.page())
            .is_none()
    }

    /// Reads RAM; returns false outside RAM.
    pub fn read(&mut self, address: PhysicalAddress, data: &mut [u8]) -> bool {
        self.vcpu.memory_mut().read(address, data)
    }

    /// Writes RAM; returns false outside RAM.
    pub fn write(&mut self, address: PhysicalAddress, data: &[u8]) -> bool {
        self.vcpu.memory_mut().write(address, data)
    }
}

/// A character of the screen; a blank if it is not an ASCII character.
fn shown(code: u8) -> char {
    match code {
        b' '..=b'~' => code.into(),
        _ => ' ',
    }
}

fn register_value(state: &CpuState, register: Register) -> u64 {
    if register.is_segment_register() {
        return state
            .segments
            .get(register as usize - Register::ES as usize)
            .filter(|_| !state.is_64_bit() || matches!(register, Register::FS | Register::GS))
            .map_or(0, |segment| segment.base);
    }
    read_register(state, register)
}

/// Paging structures whose bits a walk does not change.
struct Tables<'a>(&'a GuestMemory);

impl PageTableMemory for Tables<'_> {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.0.read_u32(address)
    }
    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.0.read_u64(address)
    }
    fn set_bits(&mut self, _: PhysicalAddress, _: u32) {}
}
