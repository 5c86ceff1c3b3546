//! The fast path of INT n and INT3 to a handler at level 0, and of the #GP of V86 tasks.
//!
//! It serves 64-bit code of levels 0 and 3, and outside IA-32e mode 32-bit code of level 3 and V86
//! tasks. The memo is a [`Delivery`], which the monitor writes when it delivers such an interrupt.
//! The routine compares the registers of the tables, and reads gate, descriptors and the stack
//! pointer of the TSS each time through the supervisor's software TLB. It looks the place of the
//! frame up for a store before it changes anything. The monitor therefore delivers an interrupt
//! whose frame would fault or lies on two pages. After the look-up nothing can fail any more.
//!
//! ```text
//! code of the block   mov r9, key; mov ecx, next EIP (V86 code: mov r8d, EIP, for a fault)
//!                     mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here                is there a memo? tables, gate, code, stack unchanged? place of the frame
//!                     frame; CS, SS, ESP, IF; jmp to the handler's block
//! ```
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context_displacements as at;
use crate::abi::fast_paths::{DONE_DELIVERY, FastPath};
use crate::abi::link_layout::ENTRY_TARGET;
use crate::abi::memos::delivery::{Delivery, DeliveryTable, KEY_LONG, KEY_REFUSED, KEY_TASK};
use crate::abi::x87_pointers::X87_FRESH;
use std::mem::offset_of;
use tollgate_x86::{Flags, Segment, SegmentRegister, Watched};

const _: () = assert!(size_of::<Delivery>() == 1 << 8 && size_of::<Segment>() == 16);
const _: () = assert!(size_of::<Watched>() == 24 && offset_of!(Delivery, key) == 0);
// The data segments of a V86 task become zeros in all fields.
const _: () = {
    let null = Segment::null(tollgate_x86::Selector(0));
    assert!(null.base == 0 && null.limit == 0 && null.attributes.is_empty());
};

/// If one of these flags is set, the frame or what follows from the delivery is unusual.
const UNUSUAL: Flags = Flags::TF
    .union(Flags::NT)
    .union(Flags::AC)
    .union(Flags::VIF)
    .union(Flags::VIP);

fast_path_routines!(
    tollgate_interrupt_start..tollgate_interrupt_end,
    {
    // Sets RCX to the flags of the frame, except VM and RF. Changes RAX. RF is cleared, whatever
    // its value.
    ".macro tollgate_interrupt_gathers_flags",
    "and qword ptr [r15 + {kept_flags}], {no_resume_flag}",
    "movzx eax, word ptr [r15 + {flags}]",
    "movzx ecx, ah",
    "and ecx, 0xd5",
    "and eax, 1",
    "shl eax, 11",
    "lea ecx, [rcx + rax + 2]",
    "or ecx, [r15 + {interrupt_flag}]",
    "or ecx, [r15 + {system_flags}]",
    "mov eax, [r15 + {direction}]",
    "and eax, {direction_flag}",
    "or ecx, eax",
    ".endm",
    // Clears IF if the gate does, and loads the segments of level 0. On entry R11 is the software
    // TLB of level 0.
    ".macro tollgate_interrupt_enters",
    "mov rax, [rdx + {interrupt_mask}]",
    "and [r15 + {interrupt_flag}], rax",
    "mov r14, r11",
    "mov [r15 + {context_tlb}], r11",
    "tollgate_copies rdx, {code}, {cs}",
    "tollgate_copies rdx, {code_descriptor}, {context_code}",
    "mov rax, [rdx + {code_descriptor} + 16]",
    "mov [r15 + {context_code} + 16], rax",
    "mov rax, [rdx + {level_changed}]",
    "or [r15 + {context_level_changed}], rax",
    "test eax, 1",
    "jz 3f",
    "tollgate_copies rdx, {stack}, {ss}",
    "tollgate_copies rdx, {stack_descriptor}, {context_stack}",
    "mov rax, [rdx + {stack_descriptor} + 16]",
    "mov [r15 + {context_stack} + 16], rax",
    "3:",
    "jmp 5f",
    ".endm",
    // Stores the ESP of level 0 in `work`; fails unless the TSS's SS and its descriptor equal those
    // in the memo.
    ".macro tollgate_interrupt_finds_stack",
    "mov r8, [rdx + {stack_slot}]",
    "tollgate_looks_up rax, r11, 0, 0",
    "movzx r9d, word ptr [rax + r8 + 4]",
    "cmp r9w, [rdx + {stack} + 12]",
    "jne 9f",
    "mov eax, [rax + r8]",
    "mov [r15 + {work}], eax",
    "tollgate_compares rdx, {stack_descriptor}, r11, 0, 0",
    "mov r8d, [r15 + {work}]",
    ".endm",
    // Stores a selector in the frame at R9. Changes RAX.
    ".macro tollgate_interrupt_stores_selector segment, offset",
    "movzx eax, word ptr [r15 + \\segment + 12]",
    "mov [r9 + \\offset], eax",
    ".endm",
    // On entry RAX is zero.
    ".macro tollgate_interrupt_clears segment",
    "mov [r15 + \\segment], rax",
    "mov [r15 + \\segment + 8], rax",
    ".endm",
    // Delivers from a V86 task. On entry RDX is the memo. The EIP of this instruction and that of
    // the next are in the context.
    ".macro tollgate_interrupt_delivers_from_task",
    "mov r11, [rdx + {tlb}]",
    "cmp qword ptr [rdx + {refused}], 0",
    "je 1f",
    "tollgate_compares rdx, {refused}, r11, 0, 0",
    "1:",
    "tollgate_compares rdx, {gate}, r11, 0, 0",
    "tollgate_compares rdx, {code_descriptor}, r11, 0, 0",
    "tollgate_interrupt_finds_stack",
    // Computes the last offset in its page at which the frame may begin.
    "mov eax, 0x1000 - 36",
    "sub r8d, 36",
    "cmp qword ptr [rdx + {error}], 0",
    "je 1f",
    "sub eax, 4",
    "sub r8d, 4",
    "1:",
    "mov ecx, r8d",
    "and ecx, 0xfff",
    "cmp ecx, eax",
    "ja 9f",
    "tollgate_looks_up r9, r11, 0, 1",
    "add r9, r8",
    // Nothing can fail from here on.
    "mov eax, [rdx + {key}]",
    "test eax, {key_refused}",
    "jz 1f",
    "inc qword ptr [r15 + {count_refusal}]",
    "jmp 2f",
    "1:",
    "inc qword ptr [r15 + {count}]",
    "2:",
    "tollgate_interrupt_gathers_flags",
    "or ecx, {virtual_mode}",
    "mov rax, [rdx + {error}]",
    "test rax, rax",
    "jz 1f",
    "mov [r9], eax",
    "add r9, 4",
    "or ecx, {resume_flag}",
    "mov eax, [r15 + {own}]",
    "jmp 2f",
    "1:",
    "mov eax, [r15 + {exit_value}]",
    "2:",
    "mov [r9], eax",
    "mov [r9 + 8], ecx",
    "mov [r9 + 12], r12d",
    "tollgate_interrupt_stores_selector {cs}, 4",
    "tollgate_interrupt_stores_selector {ss}, 16",
    "tollgate_interrupt_stores_selector {es}, 20",
    "tollgate_interrupt_stores_selector {ds}, 24",
    "tollgate_interrupt_stores_selector {fs}, 28",
    "tollgate_interrupt_stores_selector {gs}, 32",
    "xor eax, eax",
    "tollgate_interrupt_clears {es}",
    "tollgate_interrupt_clears {ds}",
    "tollgate_interrupt_clears {fs}",
    "tollgate_interrupt_clears {gs}",
    "mov r12d, r8d",
    "and qword ptr [r15 + {kept_flags}], {no_virtual_mode}",
    "tollgate_interrupt_enters",
    ".endm",
    // Delivers in all other cases. On entry RDX is the memo, and the return address is in
    // `exit_value`.
    ".macro tollgate_interrupt_delivers long",
    "mov r11, [rdx + {tlb}]",
    "tollgate_compares rdx, {gate}, r11, \\long, 0",
    ".if \\long",
    // Both words of the gate lie in one page.
    "mov rcx, [rax + r8 + 8]",
    "cmp rcx, [rdx + {second_value}]",
    "jne 9f",
    ".endif",
    // Of the descriptor of 64-bit code, only the rights count.
    "tollgate_compares rdx, {code_descriptor}, r11, \\long, \\long",
    ".if \\long",
    "mov r8, [rdx + {stack_slot}]",
    "test r8, r8",
    "jz 1f",
    "tollgate_looks_up rax, r11, \\long, 0",
    "mov rax, [rax + r8]",
    "mov r8, rax",
    "shl r8, 16",
    "sar r8, 16",
    "cmp r8, rax",
    "jne 9f",
    "jmp 2f",
    "1:",
    "mov r8, r12",
    "2:",
    "and r8, -16",
    "sub r8, 40",
    ".else",
    "tollgate_interrupt_finds_stack",
    "sub r8d, 20",
    ".endif",
    "mov eax, r8d",
    "and eax, 0xfff",
    ".if \\long",
    "cmp eax, 0x1000 - 40",
    ".else",
    "cmp eax, 0x1000 - 20",
    ".endif",
    "ja 9f",
    "tollgate_looks_up r9, r11, \\long, 1",
    "add r9, r8",
    // Nothing can fail from here on.
    "inc qword ptr [r15 + {count}]",
    "tollgate_interrupt_gathers_flags",
    "mov rax, [r15 + {exit_value}]",
    ".if \\long",
    "mov [r9], rax",
    "movzx eax, word ptr [r15 + {cs} + 12]",
    "mov [r9 + 8], rax",
    "mov [r9 + 16], rcx",
    "mov [r9 + 24], r12",
    "movzx eax, word ptr [r15 + {ss} + 12]",
    "mov [r9 + 32], rax",
    "mov r12, r8",
    ".else",
    "mov [r9], eax",
    "movzx eax, word ptr [r15 + {cs} + 12]",
    "mov [r9 + 4], eax",
    "mov [r9 + 8], ecx",
    "mov [r9 + 12], r12d",
    "movzx eax, word ptr [r15 + {ss} + 12]",
    "mov [r9 + 16], eax",
    "mov r12d, r8d",
    ".endif",
    "tollgate_interrupt_enters",
    ".endm",
    ".weak tollgate_interrupt",
    ".hidden tollgate_interrupt",
    // On entry R9 is the key, RCX the RIP of the next instruction, and for V86 code R8 the EIP of
    // this one.
    "tollgate_interrupt:",
    "tollgate_begins",
    "mov [r15 + {own}], r8",
    "mov [r15 + {exit_value}], rcx",
    "test dword ptr [r15 + {system_flags}], {unusual}",
    "jnz 9f",
    "tollgate_finds_memo r9, {delivery_shift}, 8, {deliveries}",
    "mov rax, [r15 + {context_idt_base}]",
    "cmp rax, [rdx + {idt_base}]",
    "jne 9f",
    "mov rax, [r15 + {context_gdt_base}]",
    "cmp rax, [rdx + {gdt_base}]",
    "jne 9f",
    "mov rax, [r15 + {context_task_base}]",
    "cmp rax, [rdx + {task_base}]",
    "jne 9f",
    "mov eax, [r15 + {context_task_limit}]",
    "cmp eax, [rdx + {task_limit}]",
    "jne 9f",
    "movzx eax, word ptr [r15 + {context_idt_limit}]",
    "cmp ax, [rdx + {idt_limit}]",
    "jne 9f",
    "movzx eax, word ptr [r15 + {context_gdt_limit}]",
    "cmp ax, [rdx + {gdt_limit}]",
    "jne 9f",
    "test r9d, {key_long}",
    "jz 4f",
    "tollgate_interrupt_delivers 1",
    "4:",
    // The monitor must still note the segments of the last x87 instruction.
    "test dword ptr [r15 + {x87_opcode}], {x87_fresh}",
    "jnz 9f",
    "test r9d, {key_task}",
    "jz 4f",
    "tollgate_interrupt_delivers_from_task",
    "4:",
    "tollgate_interrupt_delivers 0",
    // Continues in the table of the handler's mode.
    "5:",
    "mov rcx, [rdx + {target}]",
    "tollgate_finds_code rdx, {then}, {done_delivery}",
    "mov r11, [r9 + {entry_target}]",
    "tollgate_continues r11",
    "9:",
    "tollgate_leaves",
    ".purgem tollgate_interrupt_delivers",
    ".purgem tollgate_interrupt_delivers_from_task",
    ".purgem tollgate_interrupt_clears",
    ".purgem tollgate_interrupt_stores_selector",
    ".purgem tollgate_interrupt_finds_stack",
    ".purgem tollgate_interrupt_enters",
    ".purgem tollgate_interrupt_gathers_flags",
    },
    work = const at::WORK[0],
    own = const at::WORK[1],
    count = const at::fast_path_count(FastPath::Interrupt),
    count_refusal = const at::fast_path_count(FastPath::Refusal),
    unusual = const UNUSUAL.bits() as i32,
    resume_flag = const Flags::RF.bits() as i32,
    no_resume_flag = const !(Flags::RF.bits() as i32),
    virtual_mode = const Flags::VM.bits() as i32,
    no_virtual_mode = const !(Flags::VM.bits() as i32),
    direction_flag = const Flags::DF.bits() as i32,
    delivery_shift = const DeliveryTable::SHIFT,
    deliveries = const at::DELIVERIES,
    key_long = const 1 << KEY_LONG,
    key_task = const 1 << KEY_TASK,
    key_refused = const 1 << KEY_REFUSED,
    key = const offset_of!(Delivery, key),
    idt_base = const offset_of!(Delivery, idt_base),
    gdt_base = const offset_of!(Delivery, gdt_base),
    task_base = const offset_of!(Delivery, task_base),
    task_limit = const offset_of!(Delivery, task_limit),
    idt_limit = const offset_of!(Delivery, idt_limit),
    gdt_limit = const offset_of!(Delivery, gdt_limit),
    gate = const offset_of!(Delivery, gate),
    second_value = const offset_of!(Delivery, gate)
        + size_of::<Watched>() + offset_of!(Watched, value),
    stack_slot = const offset_of!(Delivery, stack_slot),
    error = const offset_of!(Delivery, error),
    refused = const offset_of!(Delivery, refused),
    target = const offset_of!(Delivery, target),
    tlb = const offset_of!(Delivery, tlb),
    then = const offset_of!(Delivery, then),
    level_changed = const offset_of!(Delivery, changed),
    interrupt_mask = const offset_of!(Delivery, interrupt_mask),
    code = const offset_of!(Delivery, code),
    stack = const offset_of!(Delivery, stack),
    code_descriptor = const offset_of!(Delivery, code_descriptor),
    stack_descriptor = const offset_of!(Delivery, stack_descriptor),
    context_idt_base = const at::IDT_BASE,
    context_idt_limit = const at::IDT_LIMIT,
    context_gdt_base = const at::GDT_BASE,
    context_gdt_limit = const at::GDT_LIMIT,
    context_task_base = const at::TASK_BASE,
    context_task_limit = const at::TASK_SEGMENT_LIMIT,
    context_tlb = const at::TLB,
    context_level_changed = const at::LEVEL_CHANGED,
    context_code = const at::CODE_DESCRIPTOR,
    context_stack = const at::STACK_DESCRIPTOR,
    cs = const at::segment_register(SegmentRegister::Cs),
    ss = const at::segment_register(SegmentRegister::Ss),
    es = const at::segment_register(SegmentRegister::Es),
    ds = const at::segment_register(SegmentRegister::Ds),
    fs = const at::segment_register(SegmentRegister::Fs),
    gs = const at::segment_register(SegmentRegister::Gs),
    interrupt_flag = const at::INTERRUPT_FLAG,
    system_flags = const at::SYSTEM_FLAGS,
    kept_flags = const at::register::FLAGS,
    direction = const at::DIRECTION,
    x87_opcode = const at::X87_OPCODE,
    x87_fresh = const X87_FRESH,
    done_delivery = const DONE_DELIVERY,
    entry_target = const ENTRY_TARGET,
);

unsafe extern "sysv64" {
    fn tollgate_interrupt();
}

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_interrupt as *const () as u64
}
