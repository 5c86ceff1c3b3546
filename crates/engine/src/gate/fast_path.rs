//! Fast paths in general: routines that execute an instruction without leaving guest code, and what
//! they share.
//!
//! The code of such an instruction names its exit, loads R11 with the address after itself and
//! jumps to a routine through an address in the context (see [`crate::abi::fast_paths`]). The
//! routine compares with the memo, which the monitor has stored in the context. If everything is as
//! it was then, the routine executes the instruction and jumps to R11; vector registers stay as
//! they are, and nothing is looked up or decoded again. Otherwise the routine takes the exit that
//! was named, before anything has changed. A load of FS in 32-bit code whose mode stays as it is:
//!
//! ```text
//! code of the block   movzx r8d, ax; mov r9, key; mov ecx, next EIP; lea r11, [next]
//!                     mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here                is there a memo of this selector in this mode? Is the descriptor the
//!                     same? Base, limit, selector and rights are stored
//!                     jmp r11
//! ```
//!
//! A load that changes the mode continues in translated code of the other mode, which is found like
//! the target of an indirect branch; an example is a kernel's load of FS if FS was null. If that
//! look-up misses, the exit is taken with
//! [`FastPathState::done`](crate::abi::context::groups::FastPathState::done) set.
//!
//! An instruction that needs more than comparisons is executed by a function of the monitor, which
//! the last of the routines calls with the general registers where an exit leaves them
//! ([`FastPathCall`](crate::abi::fast_paths::FastPathCall)). The function uses the host's vector
//! registers; if the guest's are loaded, they are put aside during the call
//! ([`crate::gate::live_vectors`]). A signal that arrives before or in the function is treated like
//! one that arrives in the monitor: its handler only sets `pending`, which is tested after the call
//! ([`is_here`]).
//!
//! No part of a routine is at a boundary of guest instructions: a signal handler that interrupts a
//! routine lets it run to its end, as with [`Restore::UNDIVIDED`](crate::abi::state_map::Restore).

use crate::abi::context::{BIAS, gpr_displacement};
use crate::abi::context_displacements as at;
use crate::abi::descriptors::Expected;
use crate::abi::fast_paths::{DONE_CALL, DONE_IN_LEVEL, DONE_RETURN, FAST_PATHS, FastPath};
use crate::abi::flags::SYSTEM_FLAGS;
use crate::abi::link_layout::{
    ENTRY_BYTES, ENTRY_SLIDE, ENTRY_TARGET, FAR_ENTRY_BYTES, FAR_TABLE_OFFSET, INDEX_BITS_IN_PLACE,
    LINKS_BIAS,
};
use crate::abi::memos::SPREAD;
use crate::abi::memos::cpuid_answer::{
    ANSWERS_BY_BOTH, ANSWERS_BY_LEAF, CpuidAnswer, CpuidAnswers,
};
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind, VirtualReturn};
use crate::abi::memos::segment_load::{KEY_POPS, KEY_REGISTER, SEGMENT_LOADS, SegmentLoad};
use crate::abi::x87_pointers::X87_FRESH;
use crate::gate::{device_fast_path, far_fast_path, interrupt_fast_path, miss, vector_fast_path};
use std::arch::global_asm;
use std::mem::offset_of;
use tollgate_x86::{Attributes, Flags, Gpr, Segment, SegmentRegister};

const _: () = assert!(size_of::<CpuidAnswer>() == 32 && size_of::<SegmentLoad>() == 64);
const _: () = assert!(size_of::<Segment>() == 16 && offset_of!(Segment, selector) == 12);

/// Flags in the image of a return to a V86 task that affect the task's mode or what happens first:
/// all except IOPL must be clear.
const STEERING: Flags = Flags::TF
    .union(Flags::IOPL)
    .union(Flags::NT)
    .union(Flags::AC)
    .union(Flags::VIP);

/// The place of the memo of IRET to level 3.
const CHANGE: i32 = at::level_change(LevelChangeKind::Iret);

global_asm!(
    ".macro tollgate_fast_path_begins",
    "mov [r15 + {rax}], rax",
    "mov [r15 + {rdx}], rdx",
    "lahf",
    "seto al",
    "mov [r15 + {flags}], ax",
    ".endm",
    // Restores the flags and RAX; changes nothing else.
    ".macro tollgate_fast_path_restores",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    ".endm",
    // Yields the host address minus the linear address for loads of `bytes` bytes at R8; fails
    // unless they lie in one page that the software TLB contains. Changes RAX.
    ".macro tollgate_fast_path_looks_up to, bytes",
    "mov eax, r8d",
    "and eax, 0xfff",
    "cmp eax, 0x1000 - \\bytes",
    "ja 9b",
    "mov eax, r8d",
    "shr eax, 12",
    "add eax, eax",
    "mov \\to, [r14 + rax*8]",
    "test \\to, \\to",
    "jz 9b",
    ".endm",
    // Fails unless the descriptor that the memo at this field expects lies in one page and has the
    // expected value.
    ".macro tollgate_fast_path_compares expected",
    "cmp qword ptr [r15 + \\expected + {expected_mask}], -1",
    "jne 9b",
    "mov r8, [r15 + \\expected + {expected_place}]",
    "tollgate_fast_path_looks_up rax, 8",
    "mov rax, [rax + r8]",
    "cmp rax, [r15 + \\expected + {expected_bits}]",
    "jne 9b",
    ".endm",
    // Fails unless a data segment stays as it is at level 3: it must be null, or present and of
    // level 3 (SDM volume 3, 5.8.6).
    ".macro tollgate_fast_path_keeps segment",
    "mov eax, [r15 + \\segment + 12]",
    "test eax, eax",
    "jz 1f",
    "and eax, {level_3}",
    "cmp eax, {level_3}",
    "jne 9b",
    "1:",
    ".endm",
    // Loads IF from RCX, and DF and the arithmetic flags from the image in EAX, which it copies to
    // ECX. Changes RAX and RDX.
    ".macro tollgate_fast_path_loads_flags",
    "mov [r15 + {interrupt_flag}], rcx",
    "mov edx, eax",
    "shl edx, 21",
    "sar edx, 31",
    "or edx, 1",
    "movsxd rdx, edx",
    "mov [r15 + {direction}], rdx",
    "mov ecx, eax",
    "mov edx, eax",
    "shr edx, 11",
    "and edx, 1",
    "shl eax, 8",
    "and eax, 0xd500",
    "or eax, edx",
    "mov [r15 + {flags}], ax",
    ".endm",
    // Loads a segment register as V86 mode does, from the frame at R9. Changes RAX.
    ".macro tollgate_fast_path_loads_virtual segment, offset",
    "movzx eax, word ptr [r9 + \\offset]",
    "shl eax, 4",
    "mov [r15 + \\segment], rax",
    "shr eax, 4",
    "or eax, {virtual_rights}",
    "mov dword ptr [r15 + \\segment + 8], 0xffff",
    "mov [r15 + \\segment + 12], eax",
    ".endm",
    ".weak tollgate_fast_path_return, tollgate_fast_path_call, tollgate_fast_path_called",
    ".hidden tollgate_fast_path_return, tollgate_fast_path_call, tollgate_fast_path_called",
    ".weak tollgate_fast_path_start, tollgate_fast_path_end, tollgate_fast_path_cpuid, tollgate_fast_path_segment",
    ".hidden tollgate_fast_path_start, tollgate_fast_path_end, tollgate_fast_path_cpuid, tollgate_fast_path_segment",
    ".p2align 6",
    "tollgate_fast_path_start:",
    "tollgate_fast_path_cpuid:",
    "tollgate_fast_path_begins",
    "mov rax, [r15 + {rax}]",
    "mov ecx, eax",
    "shr ecx, 25",
    "and ecx, 0x40",
    "mov r8d, eax",
    "and r8d, 0x3f",
    "or ecx, r8d",
    "shl ecx, 5",
    "lea r9, [r15 + rcx + {answers}]",
    "cmp [r9 + {leaf}], eax",
    "jne 2f",
    "cmp dword ptr [r9 + {is_known}], 0",
    "jne 3f",
    "2:",
    "mov ecx, r10d",
    "shl rcx, 32",
    "mov edx, eax",
    "or rdx, rcx",
    "mov r8, {spread}",
    "imul r8, rdx",
    "shr r8, 56",
    "shl r8d, 5",
    "lea r9, [r15 + r8 + {answers_by_both}]",
    "cmp [r9 + {leaf}], rdx",
    "je 4f",
    "xor r8d, 32",
    "lea r9, [r15 + r8 + {answers_by_both}]",
    "cmp [r9 + {leaf}], rdx",
    "jne 9f",
    "4:",
    "cmp dword ptr [r9 + {is_known}], 0",
    "je 9f",
    "3:",
    "inc qword ptr [r15 + {count_cpuid}]",
    "tollgate_fast_path_restores",
    "mov eax, [r9 + {registers}]",
    "mov ebx, [r9 + {registers} + 4]",
    "mov r10d, [r9 + {registers} + 8]",
    "mov edx, [r9 + {registers} + 12]",
    "jmp r11",
    "9:",
    "tollgate_fast_path_restores",
    "mov rdx, [r15 + {rdx}]",
    "jmp tollgate_exit",
    // On entry R8 is the selector, R9 the key without the selector, RCX the EIP of the next
    // instruction.
    ".p2align 6",
    "tollgate_fast_path_segment:",
    "tollgate_fast_path_begins",
    // The monitor must still note the segments of the last x87 instruction.
    "test dword ptr [r15 + {x87_opcode}], {x87_fresh}",
    "jnz 9b",
    "or r9, r8",
    "mov rax, {spread}",
    "imul rax, r9",
    "shr rax, 56",
    "shl eax, 6",
    "lea rdx, [r15 + rax + {loads}]",
    "cmp [rdx + {key}], r9",
    "je 1f",
    "xor eax, 64",
    "lea rdx, [r15 + rax + {loads}]",
    "cmp [rdx + {key}], r9",
    "jne 9b",
    "1:",
    "mov r8, [rdx + {place}]",
    "test r8, r8",
    "jz 2f",
    // Reads the descriptor, which lies in one page.
    "tollgate_fast_path_looks_up rax, 8",
    "mov rax, [rax + r8]",
    "cmp rax, [rdx + {descriptor}]",
    "jne 9b",
    "2:",
    "mov eax, r9d",
    "shr eax, {key_register}",
    "and eax, 7",
    "shl eax, 4",
    "mov r8, [rdx + {segment}]",
    "mov [r15 + rax + {segments}], r8",
    "mov r8, [rdx + {segment} + 8]",
    "mov [r15 + rax + {segments} + 8], r8",
    "inc qword ptr [r15 + {count_segment}]",
    "test r9d, {pops}",
    "jz 3f",
    "add r12d, 4",
    "3:",
    "mov rax, [rdx + {tag}]",
    "test rax, rax",
    "jz 5f",
    // The mode changes: continues in the table of the new mode.
    "or dword ptr [r15 + {level_changed}], {mode_changed}",
    "add rax, rcx",
    look_up_target!("rdx + {table}", "4f"),
    "mov [r15 + {exit_value}], rcx",
    "mov qword ptr [r15 + {done}], {done_in_level}",
    "jmp 9b",
    "4:",
    "mov r11, [r9 + {entry_target}]",
    "5:",
    "tollgate_fast_path_restores",
    "mov rdx, [r15 + {rdx}]",
    "jmp r11",
    // On entry R8 is ESP, and R9 is the mode, encoded as in `LevelChange::from`.
    ".p2align 6",
    "tollgate_fast_path_return:",
    "tollgate_fast_path_begins",
    "test dword ptr [r15 + {x87_opcode}], {x87_fresh}",
    "jnz 9b",
    "mov r11, r9",
    // EIP, CS, EFLAGS, ESP and SS must lie in one page.
    "tollgate_fast_path_looks_up r9, 20",
    "add r9, r8",
    "test dword ptr [r9 + 8], {virtual_mode}",
    "jnz 7f",
    "cmp [r15 + {change_from}], r11",
    "jne 9b",
    "movzx eax, word ptr [r9 + 4]",
    "cmp rax, [r15 + {outer_code_selector}]",
    "jne 9b",
    "movzx eax, word ptr [r9 + 16]",
    "cmp rax, [r15 + {outer_stack_selector}]",
    "jne 9b",
    "tollgate_fast_path_compares {outer_code}",
    "tollgate_fast_path_compares {outer_stack}",
    "tollgate_fast_path_keeps {es}",
    "tollgate_fast_path_keeps {ds}",
    "tollgate_fast_path_keeps {fs}",
    "tollgate_fast_path_keeps {gs}",
    "mov eax, [r9 + 8]",
    "test eax, {unusual_flags}",
    "jnz 9b",
    "mov ecx, eax",
    "and ecx, {interrupt_enable}",
    "test [r15 + {request}], rcx",
    "jnz 9b",
    // Nothing can fail from here on. The flags are loaded first.
    "inc qword ptr [r15 + {count_return}]",
    "tollgate_fast_path_loads_flags",
    "and ecx, {resume_flag}",
    "mov [r15 + {kept_flags}], rcx",
    "mov qword ptr [r15 + {system_flags}], 0",
    "mov r12d, [r9 + 12]",
    "mov ecx, [r9]",
    "mov [r15 + {returned_rip}], rcx",
    "mov rax, [r15 + {change_code}]",
    "mov [r15 + {cs}], rax",
    "mov rax, [r15 + {change_code} + 8]",
    "mov [r15 + {cs} + 8], rax",
    "mov rax, [r15 + {change_stack}]",
    "mov [r15 + {ss}], rax",
    "mov rax, [r15 + {change_stack} + 8]",
    "mov [r15 + {ss} + 8], rax",
    // The monitor has not examined the descriptor of this CS.
    "mov qword ptr [r15 + {code_mask}], {never_mask}",
    "mov qword ptr [r15 + {code_bits}], {never_bits}",
    "mov r14, [r15 + {change_tlb}]",
    "mov [r15 + {tlb}], r14",
    "mov dword ptr [r15 + {level_changed}], 1",
    // Continues in the table of the program's mode.
    "mov rax, [r15 + {change_tag}]",
    "add rax, rcx",
    look_up_target!("r15 + {change_table}", "4f"),
    "mov [r15 + {exit_value}], rcx",
    "mov qword ptr [r15 + {done}], {done_return}",
    "jmp 9b",
    "4:",
    "mov r8, [r9 + {entry_slide}]",
    "mov [r15 + {code_slide}], r8",
    "mov r11, [r9 + {entry_target}]",
    "tollgate_fast_path_restores",
    "mov rdx, [r15 + {rdx}]",
    "jmp r11",
    // A return to a V86 task: ES, DS, FS and GS are in the frame too.
    "7:",
    "cmp [r15 + {virtual_from}], r11",
    "jne 9b",
    "mov eax, r8d",
    "and eax, 0xfff",
    "cmp eax, 0x1000 - 36",
    "ja 9b",
    "cmp dword ptr [r9], 0xffff",
    "ja 9b",
    "mov eax, [r9 + 8]",
    "mov ecx, eax",
    "and ecx, {steering_flags}",
    "cmp rcx, [r15 + {virtual_privilege}]",
    "jne 9b",
    "mov ecx, eax",
    "and ecx, {interrupt_enable}",
    "test [r15 + {request}], rcx",
    "jnz 9b",
    // Nothing can fail from here on.
    "inc qword ptr [r15 + {count_return}]",
    "tollgate_fast_path_loads_flags",
    "and ecx, {flags_of_task}",
    "mov [r15 + {kept_flags}], rcx",
    "and ecx, {flags_apart}",
    "mov [r15 + {system_flags}], rcx",
    "tollgate_fast_path_loads_virtual {cs}, 4",
    "tollgate_fast_path_loads_virtual {ss}, 16",
    "tollgate_fast_path_loads_virtual {es}, 20",
    "tollgate_fast_path_loads_virtual {ds}, 24",
    "tollgate_fast_path_loads_virtual {fs}, 28",
    "tollgate_fast_path_loads_virtual {gs}, 32",
    "mov r12d, [r9 + 12]",
    "mov ecx, [r9]",
    "mov [r15 + {returned_rip}], rcx",
    "mov qword ptr [r15 + {code_mask}], {never_mask}",
    "mov qword ptr [r15 + {code_bits}], {never_bits}",
    "mov r14, [r15 + {virtual_tlb}]",
    "mov [r15 + {tlb}], r14",
    "mov dword ptr [r15 + {level_changed}], 1",
    // Continues in the table of far transfers.
    "movzx r11d, word ptr [r9 + 4]",
    "shl r11d, 16",
    "or r11d, ecx",
    "mov r8d, r11d",
    "shr r8d, 12",
    "add r8d, r11d",
    "movzx r8d, r8w",
    "shl r8d, {far_entry_shift}",
    "lea r9, [r13 + r8 + {far_table} - {links_bias}]",
    "mov r8, [r9]",
    "add r8, r11",
    "add r8, [r15 + {virtual_tag}]",
    "jz 4f",
    "mov [r15 + {exit_value}], rcx",
    "mov qword ptr [r15 + {done}], {done_return}",
    "jmp 9b",
    "4:",
    "mov r11, [r9 + 8]",
    "tollgate_fast_path_restores",
    "mov rdx, [r15 + {rdx}]",
    "jmp r11",
    // On entry R8 is an address or a value, and R9 says what the function must do.
    ".p2align 6",
    "tollgate_fast_path_call:",
    "tollgate_fast_path_begins",
    "mov rax, [r15 + {rax}]",
    "mov [r15 + {cpu_rax}], rax",
    "mov [r15 + {cpu_rcx}], r10",
    "mov [r15 + {cpu_rdx}], rdx",
    "mov [r15 + {cpu_rsi}], rsi",
    "mov [r15 + {cpu_rdi}], rdi",
    "mov [r15 + {cpu_rbx}], rbx",
    "mov [r15 + {cpu_rbp}], rbp",
    "mov [r15 + {cpu_rsp}], r12",
    "cmp qword ptr [r15 + {vectors_off}], 0",
    "jne 6f",
    "call tollgate_vectors_aside",
    "6:",
    // R11 is pushed twice, so that the stack stays aligned.
    "push r11",
    "push r11",
    "lea rdi, [r15 - {bias}]",
    "mov rsi, r9",
    "mov rdx, r8",
    "call [r15 + {function}]",
    "pop r11",
    "pop r11",
    "cmp eax, 1",
    "jne 6f",
    "cmp qword ptr [r15 + {vectors_were_live}], 0",
    "je 6f",
    "call tollgate_vectors_back",
    "6:",
    "mov r10, [r15 + {cpu_rcx}]",
    "mov rdx, [r15 + {cpu_rdx}]",
    "mov rsi, [r15 + {cpu_rsi}]",
    "mov rdi, [r15 + {cpu_rdi}]",
    "mov rbx, [r15 + {cpu_rbx}]",
    "mov rbp, [r15 + {cpu_rbp}]",
    "mov r12, [r15 + {cpu_rsp}]",
    "mov r8, [r15 + {cpu_rax}]",
    "mov [r15 + {rax}], r8",
    // The function may have loaded another space.
    "mov r13, [r15 + {links}]",
    // From here on `is_here` recognises the routine.
    "tollgate_fast_path_called:",
    "cmp eax, 1",
    "jne 8f",
    "mov rax, [r15 + {pending}]",
    "cmp dword ptr [rax], 0",
    "jne 7f",
    "tollgate_fast_path_restores",
    "jmp r11",
    "7:",
    "mov qword ptr [r15 + {done}], {done_call}",
    "8:",
    "tollgate_fast_path_restores",
    "jmp tollgate_exit",
    "tollgate_fast_path_end:",
    ".purgem tollgate_fast_path_looks_up",
    ".purgem tollgate_fast_path_compares",
    ".purgem tollgate_fast_path_keeps",
    ".purgem tollgate_fast_path_loads_flags",
    ".purgem tollgate_fast_path_loads_virtual",
    ".purgem tollgate_fast_path_begins",
    ".purgem tollgate_fast_path_restores",
    rax = const at::slot(Gpr::Rax as u8),
    rdx = const at::slot(Gpr::Rdx as u8),
    cpu_rax = const gpr_displacement(Gpr::Rax),
    cpu_rcx = const gpr_displacement(Gpr::Rcx),
    cpu_rdx = const gpr_displacement(Gpr::Rdx),
    cpu_rsi = const gpr_displacement(Gpr::Rsi),
    cpu_rdi = const gpr_displacement(Gpr::Rdi),
    cpu_rbx = const gpr_displacement(Gpr::Rbx),
    cpu_rbp = const gpr_displacement(Gpr::Rbp),
    cpu_rsp = const gpr_displacement(Gpr::Rsp),
    bias = const BIAS,
    vectors_off = const at::VECTORS_OFF,
    vectors_were_live = const at::VECTORS_WERE_LIVE,
    function = const at::FAST_PATH_FUNCTION,
    links = const at::LINKS,
    pending = const at::PENDING,
    done_call = const DONE_CALL,
    flags = const at::STRING_FLAGS,
    answers = const at::CPUID_ANSWERS,
    answers_by_both = const at::CPUID_ANSWERS + offset_of!(CpuidAnswers, by_both) as i32,
    leaf = const offset_of!(CpuidAnswer, leaf),
    spread = const SPREAD,
    is_known = const offset_of!(CpuidAnswer, is_known),
    registers = const offset_of!(CpuidAnswer, registers),
    count_cpuid = const at::fast_path_count(FastPath::Cpuid),
    count_segment = const at::fast_path_count(FastPath::LoadSegment),
    x87_opcode = const at::X87_OPCODE,
    x87_fresh = const X87_FRESH,
    key_register = const KEY_REGISTER,
    loads = const at::SEGMENT_LOADS,
    key = const offset_of!(SegmentLoad, key),
    place = const offset_of!(SegmentLoad, place),
    descriptor = const offset_of!(SegmentLoad, descriptor),
    segment = const offset_of!(SegmentLoad, segment),
    table = const offset_of!(SegmentLoad, then.table),
    tag = const offset_of!(SegmentLoad, then.tag),
    segments = const at::segment_register(SegmentRegister::Es),
    pops = const 1 << KEY_POPS,
    level_changed = const at::LEVEL_CHANGED,
    mode_changed = const crate::abi::context::groups::Changed::MODE.bits(),
    entry_bytes = const ENTRY_BYTES,
    index_bits_in_place = const INDEX_BITS_IN_PLACE,
    links_bias = const LINKS_BIAS,
    entry_target = const ENTRY_TARGET,
    exit_value = const at::EXIT_VALUE,
    done = const at::FAST_PATH_DONE,
    done_in_level = const DONE_IN_LEVEL,
    done_return = const DONE_RETURN,
    entry_slide = const ENTRY_SLIDE,
    code_slide = const at::CODE_SLIDE,
    expected_place = const offset_of!(Expected, place),
    expected_bits = const offset_of!(Expected, bits),
    expected_mask = const offset_of!(Expected, mask),
    outer_code_selector = const at::OUTER_CODE_SELECTOR,
    outer_stack_selector = const at::OUTER_STACK_SELECTOR,
    outer_code = const at::OUTER_CODE_DESCRIPTOR,
    outer_stack = const at::OUTER_STACK_DESCRIPTOR,
    level_3 = const (Attributes::PRESENT.bits() as u32 | 3 << 5) << 16,
    es = const at::segment_register(SegmentRegister::Es),
    cs = const at::segment_register(SegmentRegister::Cs),
    ss = const at::segment_register(SegmentRegister::Ss),
    ds = const at::segment_register(SegmentRegister::Ds),
    fs = const at::segment_register(SegmentRegister::Fs),
    gs = const at::segment_register(SegmentRegister::Gs),
    unusual_flags = const SYSTEM_FLAGS.union(Flags::VM).bits() as i32,
    interrupt_enable = const Flags::IF.bits() as i32,
    resume_flag = const Flags::RF.bits() as i32,
    request = const at::INTERRUPT_REQUEST,
    interrupt_flag = const at::INTERRUPT_FLAG,
    direction = const at::DIRECTION,
    kept_flags = const at::register::FLAGS,
    system_flags = const at::SYSTEM_FLAGS,
    returned_rip = const at::RETURNED_RIP,
    code_mask = const at::CODE_DESCRIPTOR + offset_of!(Expected, mask) as i32,
    code_bits = const at::CODE_DESCRIPTOR + offset_of!(Expected, bits) as i32,
    never_mask = const Expected::NEVER.mask,
    never_bits = const Expected::NEVER.bits,
    tlb = const at::TLB,
    change_from = const CHANGE + offset_of!(LevelChange, from) as i32,
    change_code = const CHANGE + offset_of!(LevelChange, code) as i32,
    change_stack = const CHANGE + offset_of!(LevelChange, stack) as i32,
    change_tlb = const CHANGE + offset_of!(LevelChange, tlb) as i32,
    change_table = const CHANGE + offset_of!(LevelChange, table) as i32,
    change_tag = const CHANGE + offset_of!(LevelChange, tag) as i32,
    count_return = const at::fast_path_count(FastPath::Return),
    virtual_mode = const Flags::VM.bits() as i32,
    virtual_rights = const (Segment::real_mode(0, 3).attributes.bits() as u32) << 16,
    virtual_from = const at::VIRTUAL_RETURN + offset_of!(VirtualReturn, from) as i32,
    virtual_privilege = const at::VIRTUAL_RETURN + offset_of!(VirtualReturn, privilege) as i32,
    virtual_tlb = const at::VIRTUAL_RETURN + offset_of!(VirtualReturn, tlb) as i32,
    virtual_tag = const at::VIRTUAL_RETURN + offset_of!(VirtualReturn, tag) as i32,
    steering_flags = const STEERING.bits() as i32,
    flags_of_task = const SYSTEM_FLAGS.union(Flags::VM).union(Flags::RF).bits() as i32,
    flags_apart = const SYSTEM_FLAGS.bits() as i32,
    far_table = const FAR_TABLE_OFFSET,
    far_entry_shift = const FAR_ENTRY_BYTES.ilog2(),
);

const _: () = assert!(ANSWERS_BY_LEAF == 128 && ANSWERS_BY_BOTH == 256 && SEGMENT_LOADS == 256);
const _: () = assert!(offset_of!(CpuidAnswer, subleaf) == offset_of!(CpuidAnswer, leaf) + 4);

unsafe extern "sysv64" {
    fn tollgate_fast_path_start();
    fn tollgate_fast_path_cpuid();
    fn tollgate_fast_path_segment();
    fn tollgate_fast_path_return();
    fn tollgate_fast_path_call();
    fn tollgate_fast_path_called();
    fn tollgate_fast_path_end();
}

/// The addresses of the routines, by number.
pub fn addresses() -> [u64; FAST_PATHS] {
    [
        tollgate_fast_path_cpuid as *const () as u64,
        tollgate_fast_path_segment as *const () as u64,
        tollgate_fast_path_return as *const () as u64,
        interrupt_fast_path::address(),
        far_fast_path::address(),
        vector_fast_path::address(),
        tollgate_fast_path_call as *const () as u64,
        tollgate_fast_path_call as *const () as u64,
        tollgate_fast_path_call as *const () as u64,
        tollgate_fast_path_call as *const () as u64,
        miss::address(),
        miss::address(),
        device_fast_path::address(),
        device_fast_path::address(),
        // Emitted code does not call these two.
        device_fast_path::miss_address(),
        device_fast_path::miss_address(),
        tollgate_fast_path_call as *const () as u64,
        interrupt_fast_path::address(),
    ]
}

/// Whether a routine runs at this host address and is not about to call the monitor's function.
pub fn is_here(pc: u64) -> bool {
    let at = |place: unsafe extern "sysv64" fn()| place as *const () as u64;
    (at(tollgate_fast_path_start)..at(tollgate_fast_path_call)).contains(&pc)
        || (at(tollgate_fast_path_called)..at(tollgate_fast_path_end)).contains(&pc)
        || interrupt_fast_path::is_here(pc)
        || far_fast_path::is_here(pc)
        || miss::is_here(pc)
        || vector_fast_path::is_here(pc)
        || device_fast_path::is_here(pc)
}
