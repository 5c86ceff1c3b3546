//! Tests small flat 32-bit programs that a vCPU runs with almost no machine around it.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};
use tollgate_test_support::Computer;
use tollgate_x86::{Attributes, CpuModel, CpuState, PhysicalAddress, SegmentRegister};

/// A machine that stops when the guest writes to port F4h and records writes to port E9h.
#[derive(Default)]
struct Bench {
    stop: Option<StopRequest>,
    written: Vec<u8>,
    device_reads: u32,
    /// Size of the widest access to device memory, in bytes.
    widest: usize,
}

impl BareMachine for Bench {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        match port {
            0xf4 => self.stop = Some(StopRequest::DebugExit(value as u8)),
            0xe9 => self.written.push(value as u8),
            _ => {}
        }
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        self.device_reads += 1;
        self.widest = self.widest.max(data.len());
        data.fill(0x5a);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, data: &[u8]) {
        self.widest = self.widest.max(data.len());
        self.written.extend_from_slice(data);
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

fn flat_state(entry: u64) -> CpuState {
    let mut state = tollgate_test_support::flat_state(entry);
    state.gpr[4] = 0x8000;
    state
}

/// Runs code at 64 KiB until it writes to port F4h.
fn run_with(map: &'static RegisterMap, code: &[u8]) -> Computer<Bench> {
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    memory.write(PhysicalAddress(0x10000), code);
    let mut vcpu =
        Computer::new(flat_state(0x10000), memory, Bench::default(), 1 << 20, true).unwrap();
    vcpu.set_register_map(map);
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    vcpu
}

/// Runs code on a processor of another model.
fn run_on(model: CpuModel, code: &[u8]) -> Computer<Bench> {
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    memory.write(PhysicalAddress(0x10000), code);
    let mut state = flat_state(0x10000);
    state.model = model;
    let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    vcpu
}

/// Runs code under every register map; it must end in the same state.
fn run(code: &[u8]) -> Computer<Bench> {
    let legacy = run_with(&RegisterMap::LEGACY, code);
    let spilled = run_with(&RegisterMap::SPILLED, code);
    assert_eq!(legacy.dump(), spilled.dump());
    assert_eq!(legacy.platform().written, spilled.platform().written);
    spilled
}

const EXIT: &[u8] = &[0xe6, 0xf4]; // out 0xf4, al

fn program(code: &[u8]) -> Vec<u8> {
    [code, EXIT].concat()
}

#[test]
fn immediate_moves_reach_the_registers() {
    let vcpu = run(&program(&[0xb8, 1, 2, 3, 4, 0xbb, 5, 0, 0, 0]));
    assert_eq!(vcpu.state().gpr[0], 0x0403_0201);
    assert_eq!(vcpu.state().gpr[3], 5);
}

#[test]
fn memory_is_written_and_read_back() {
    // mov ebx, 0x20000; mov dword [ebx+4], 0x12345678; mov eax, [ebx+4]; mov cl, [ebx+5]
    let vcpu = run(&program(&[
        0xbb, 0, 0, 2, 0, 0xc7, 0x43, 4, 0x78, 0x56, 0x34, 0x12, 0x8b, 0x43, 4, 0x8a, 0x4b, 5,
    ]));
    assert_eq!(vcpu.state().gpr[0], 0x1234_5678);
    assert_eq!(vcpu.state().gpr[1], 0x56);
}

#[test]
fn a_counting_loop_ends_with_its_flags() {
    // mov ecx, 100000; xor eax, eax; l: inc eax; dec ecx; jnz l
    let vcpu = run(&program(&[
        0xb9, 0xa0, 0x86, 1, 0, 0x31, 0xc0, 0x40, 0x49, 0x75, 0xfc,
    ]));
    assert_eq!(vcpu.state().gpr[0], 100_000);
    assert_ne!(vcpu.state().flags & 0x40, 0);
}

#[test]
fn calls_and_returns_balance() {
    // mov ecx, 1000; l: call f; dec ecx; jnz l; jmp end; f: push ecx; inc eax; pop edx; ret; end:
    let vcpu = run(&program(&[
        0x31, 0xc0, 0xb9, 0xe8, 3, 0, 0, 0xe8, 5, 0, 0, 0, 0x49, 0x75, 0xf8, 0xeb, 4, 0x51, 0x40,
        0x5a, 0xc3,
    ]));
    assert_eq!(vcpu.state().gpr[0], 1000);
    assert_eq!(vcpu.state().gpr[4], 0x8000);
    assert_eq!(vcpu.state().gpr[2], 1);
}

#[test]
fn calls_whose_stack_lies_among_the_code_arrive() {
    // mov esp, 0x10800; mov ecx, 7; call f; mov eax, f; call eax; jmp end; f: inc ecx; ret; end:
    let vcpu = run(&program(&[
        0xbc, 0x00, 0x08, 1, 0, 0xb9, 7, 0, 0, 0, 0xe8, 9, 0, 0, 0, 0xb8, 0x18, 0, 1, 0, 0xff,
        0xd0, 0xeb, 2, 0x41, 0xc3,
    ]));
    assert_eq!(vcpu.state().gpr[1], 9);
    assert_eq!(vcpu.state().gpr[4], 0x10800);
}

#[test]
fn straddling_accesses_cross_pages() {
    // mov ebx, 0x20ffe; mov dword [ebx], 0xaabbccdd; mov eax, [ebx]; movzx ecx, byte [ebx+2]
    let vcpu = run(&program(&[
        0xbb, 0xfe, 0x0f, 2, 0, 0xc7, 3, 0xdd, 0xcc, 0xbb, 0xaa, 0x8b, 3, 0x0f, 0xb6, 0x4b, 2,
    ]));
    assert_eq!(vcpu.state().gpr[0], 0xaabb_ccdd);
    assert_eq!(vcpu.state().gpr[1], 0xbb);
}

#[test]
fn a_device_is_read_exactly_once_and_the_instruction_runs_on_the_value() {
    // mov ebx, 0xfee00000; mov eax, 1; add eax, [ebx]
    let vcpu = run(&program(&[0xbb, 0, 0, 0xe0, 0xfe, 0xb8, 1, 0, 0, 0, 3, 3]));
    assert_eq!(vcpu.state().gpr[0], 0x5a5a_5a5b);
    assert_eq!(vcpu.platform().device_reads, 1);
}

#[test]
fn code_that_changes_its_next_instruction_runs_the_new_one() {
    // mov byte [0x10008], 0x42 (inc edx); inc ecx -> becomes inc edx
    let vcpu = run(&program(&[0xc6, 5, 7, 0, 1, 0, 0x42, 0x41]));
    assert_eq!(vcpu.state().gpr[1], 0);
    assert_eq!(vcpu.state().gpr[2], 1);
}

#[test]
fn high_bytes_work_with_memory_operands() {
    // mov ebx,0x20000; mov word [ebx],0x3412; mov ah,[ebx]; add [ebx+1],ah; mov cx,[ebx]
    let vcpu = run(&program(&[
        0xbb, 0, 0, 2, 0, 0x66, 0xc7, 3, 0x12, 0x34, 0x8a, 0x23, 0, 0x63, 1, 0x66, 0x8b, 0x0b,
    ]));
    assert_eq!(vcpu.state().gpr[0], 0x1200);
    assert_eq!(vcpu.state().gpr[1], 0x4612);
}

#[test]
fn counts_branch_wherever_other_registers_live() {
    // mov ecx,5; xor ebx,ebx; l: inc ebx; loop l; jecxz z; hlt; z: mov bh,7; add ebx,ecx
    let vcpu = run(&program(&[
        0xb9, 5, 0, 0, 0, 0x31, 0xdb, 0x43, 0xe2, 0xfd, 0xe3, 1, 0xf4, 0xb7, 7, 0x01, 0xcb,
    ]));
    assert_eq!(vcpu.state().gpr[3], 0x705);
}

#[test]
fn calls_and_jumps_go_through_every_register() {
    // mov ebx,f; call ebx; mov esi,end; jmp esi; hlt; f: mov ebp,9; ret; end:
    let vcpu = run(&program(&[
        0xbb, 0x0f, 0, 1, 0, 0xff, 0xd3, 0xbe, 0x15, 0, 1, 0, 0xff, 0xe6, 0xf4, 0xbd, 9, 0, 0, 0,
        0xc3,
    ]));
    assert_eq!(vcpu.state().gpr[5], 9);
}

#[test]
fn eight_bytes_are_exchanged_with_the_implied_registers() {
    // mov edx,0; mov eax,0; mov ecx,0x11; mov ebx,0x22; mov esi,0x20000
    // cmpxchg8b [esi]; mov eax,[esi]; mov edx,[esi+4]
    let vcpu = run(&program(&[
        0xba, 0, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0xb9, 0x11, 0, 0, 0, 0xbb, 0x22, 0, 0, 0, 0xbe, 0, 0,
        2, 0, 0x0f, 0xc7, 0x0e, 0x8b, 6, 0x8b, 0x56, 4,
    ]));
    assert_eq!(vcpu.state().gpr[0], 0x22);
    assert_eq!(vcpu.state().gpr[2], 0x11);
}

#[test]
fn a_high_byte_reaches_the_stack_pointer() {
    // mov ebx,0x8800; movzx esp,bh
    let vcpu = run(&program(&[0xbb, 0, 0x88, 0, 0, 0x0f, 0xb6, 0xe7]));
    assert_eq!(vcpu.state().gpr[4], 0x88);
}

#[test]
fn an_x87_image_in_device_memory_is_accessed_in_pieces_that_a_device_knows() {
    // fninit; fnsave [0xfee00000]; frstor [0xfee00000]
    let code = program(&[
        0xdb, 0xe3, 0xdd, 0x35, 0, 0, 0xe0, 0xfe, 0xdd, 0x25, 0, 0, 0xe0, 0xfe,
    ]);
    let vcpu = run(&code);
    assert_eq!(vcpu.platform().written.len(), 108);
    assert_eq!(vcpu.platform().written[..2], [0x7f, 3]);
    assert_eq!(vcpu.platform().widest, 64);
}

#[test]
fn a_call_that_is_done_out_of_line_goes_to_its_target_only() {
    // The stack lies in the code's page, so the return address goes out of line:
    // mov esp,0x10f00; call next; (never here: hlt); next: mov ecx,ecx; mov ebx,esp
    let call = [
        0xbc, 0, 0x0f, 1, 0, 0xe8, 1, 0, 0, 0, 0xf4, 0x89, 0xc9, 0x89, 0xe3,
    ];
    let vcpu = run(&program(&call));
    assert_eq!(vcpu.state().gpr[3], 0x10efc);
    assert_eq!(vcpu.state().gpr[1], 0);

    // The program makes the same call with an expand-down stack segment, and returns.
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    // call over; out 0xf4,al; over: inc ebx; ret
    let code = [0xe8, 2, 0, 0, 0, 0xe6, 0xf4, 0x43, 0xc3];
    memory.write(PhysicalAddress(0x10000), &code);
    let mut state = flat_state(0x10000);
    let stack = state.segment_mut(SegmentRegister::Ss);
    stack.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING;
    stack.limit = 0xfff;
    let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::Requested(_)), "{stop:?}");
    assert_eq!((vcpu.state().gpr[3], vcpu.state().gpr[4]), (1, 0x8000));
    assert_eq!(vcpu.state().gpr[1], 0);
}

#[test]
fn a_device_that_writes_running_code_changes_what_runs_next() {
    // again: mov eax, 1111h; call code in the next page; out F4h, al; jmp again
    let mut code = vec![0xb8, 0x11, 0x11, 0, 0];
    code.extend([0xe8]);
    code.extend((0x11000_u32 - 0x1000a).to_le_bytes());
    code.extend([0xe6, 0xf4, 0xeb, 0xf2]);
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    memory.write(PhysicalAddress(0x10000), &code);
    // mov ebx, 2222h; ret
    memory.write(PhysicalAddress(0x11000), &[0xbb, 0x22, 0x22, 0, 0, 0xc3]);
    let mut vcpu =
        Computer::new(flat_state(0x10000), memory, Bench::default(), 1 << 20, true).unwrap();
    for round in 0..4_u32 {
        let stop = vcpu.run();
        assert!(matches!(stop, VcpuStop::Requested(_)), "{stop:?}");
        let expected = [0x1111 + round, 0x2222 + round];
        assert_eq!(
            [0, 3].map(|register| vcpu.state().gpr[register] as u32),
            expected
        );
        // Gives the first page a new value twice, the second page once; all stores use the memory
        // gate.
        let next = |value: u32| (value + round + 1).to_le_bytes();
        let memory = vcpu.memory_mut();
        assert!(memory.write(PhysicalAddress(0x10001), &[0xff; 4]));
        assert!(memory.write(PhysicalAddress(0x10001), &next(0x1111)));
        assert!(memory.write(PhysicalAddress(0x11001), &next(0x2222)));
    }
}

#[test]
fn page_tables_outside_of_ram_shut_the_processor_down() {
    const PAGING: u64 = 1 << 31;
    const PSE: u64 = 1 << 4;
    const PAE: u64 = 1 << 5;
    for cr3 in [0xe000_0000, (4 << 20) - 4096, 4 << 20, 0xffff_f000] {
        for cr4 in [0, PSE, PAE] {
            let memory = GuestMemory::new(4 << 20).unwrap();
            let mut state = flat_state(0x10000);
            state.cr0 |= PAGING;
            (state.cr3, state.cr4) = (cr3, cr4);
            // The directory entries are present, and their tables may be outside RAM.
            state.pdpte = [cr3 | 1; 4];
            let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
            let stop = vcpu.run();
            assert!(
                matches!(stop, VcpuStop::TripleFault(_)),
                "CR3 {cr3:#x} CR4 {cr4:#x}: {stop:?}"
            );
        }
    }
}

#[test]
fn a_call_whose_stack_is_a_device_pushes_once_and_goes_to_its_target() {
    // mov esp, 0xfee00100; call f; f: mov esp, 0x8000; inc eax
    let vcpu = run(&program(&[
        0xbc, 0, 1, 0xe0, 0xfe, 0xe8, 0, 0, 0, 0, 0xbc, 0, 0x80, 0, 0, 0x40,
    ]));
    assert_eq!(vcpu.state().gpr[0], 1);
    assert_eq!(vcpu.platform().written, 0x1000au32.to_le_bytes());
}

/// A [`Bench`] with a timer that fires all the time.
#[derive(Default)]
struct Restless(Bench, std::cell::Cell<u64>);

impl BareMachine for Restless {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.0.port_read(port, size)
    }
    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.0.port_write(port, size, value);
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.0.memory_read(address, data);
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.0.memory_write(address, data);
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.1.get())
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        // Each deadline is a little later than the last one, so the timer is set again.
        self.1.set(self.1.get() + 1);
        Some(GuestTime(self.1.get()))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.0.take_stop_request()
    }
}

#[test]
fn every_instruction_traps_once_however_often_timers_interrupt() {
    const LOOPS: u32 = 50_000;
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    // mov ecx,LOOPS; again: inc eax; dec ecx; jnz again; and what ends the run, of which
    // OUT traps as well, but the run has ended.
    let mut code = vec![0xb9];
    code.extend(LOOPS.to_le_bytes());
    code.extend([0x40, 0x49, 0x75, 0xfc]);
    memory.write(PhysicalAddress(0x10000), &program(&code));
    // inc ebx; iret
    memory.write(PhysicalAddress(0x9000), &[0x43, 0xcf]);
    memory.write_u64(PhysicalAddress(0x9108), 0x0000_8e00_0010_9000);
    memory.write_u64(PhysicalAddress(0x9210), 0x00cf_9b00_0000_ffff);
    memory.write_u64(PhysicalAddress(0x9218), 0x00cf_9300_0000_ffff);
    let mut state = flat_state(0x10000);
    (state.idtr.base, state.idtr.limit) = (0x9100, 0xff);
    (state.gdtr.base, state.gdtr.limit) = (0x9200, 0x1f);
    state.flags |= 1 << 8;
    let mut vcpu = Computer::new(state, memory, Restless::default(), 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::Requested(_)), "{stop:?}");
    assert_eq!(vcpu.state().gpr[0], u64::from(LOOPS));
    // The stop comes before or after the handler of the last trap.
    let traps = vcpu.state().gpr[3];
    let instructions = u64::from(LOOPS) * 3 + 1;
    assert!(
        (instructions..=instructions + 1).contains(&traps),
        "{traps} traps of {instructions} instructions"
    );
}

#[test]
fn tzcnt_and_lzcnt_are_bsf_and_bsr_on_processors_without_them() {
    // mov ecx, 0x100; tzcnt eax, ecx; lzcnt ebx, ecx; push ecx; tzcnt edx, [esp]
    let code = program(&[
        0xb9, 0, 1, 0, 0, 0xf3, 0x0f, 0xbc, 0xc1, 0xf3, 0x0f, 0xbd, 0xd9, 0x51, 0xf3, 0x0f, 0xbc,
        0x14, 0x24,
    ]);
    let results = |model| {
        let vcpu = run_on(model, &code);
        [0, 3, 2].map(|register| vcpu.state().gpr[register])
    };
    assert_eq!(results(CpuModel::X86_64V1), [8, 8, 8]);
    assert_eq!(results(CpuModel::X86_64V3), [8, 23, 8]);
}
