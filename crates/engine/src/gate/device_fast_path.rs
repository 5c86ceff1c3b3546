//! The fast path of accesses to devices whose registers are no more than a word of state, and to
//! display memory that is not RAM.
//!
//! The device accesses are IN and OUT, and loads and stores of 4 bytes in the page of such
//! registers. The routine calls the monitor
//! ([`DeviceFastPath`](crate::abi::context::groups::DeviceFastPath)) by the usual calling convention:
//! guest registers that a call may change are kept in their slots. Vector registers are put aside
//! if they are loaded ([`crate::gate::live_vectors`]). A request to leave that arrives during the
//! call finds the thread outside guest code and sets `pending`, which is tested after the call.
//!
//! ```text
//! IN, OUT             movzx r8d, dx; mov r9, key; lea r11, [next]
//!                     mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here                keep what a call may change; call the monitor
//!                     jmp r11
//! ```
//!
//! Loads and stores arrive through their miss in the software TLB, which has no entry for a
//! device's page: every miss passes [`miss_address`]. The routine executes the instruction and
//! continues after it if R8, the linear address, is in the device's page or in the display's
//! window, and the monitor has noted what the instruction of the site does ([`DeviceAccess`]). With
//! paging on, any linear address may lead to display memory: then the routine asks the monitor
//! wherever a noted instruction misses. Where the routine does nothing, [`crate::gate::miss`] is
//! next.
//!
//! The part of a repeated string instruction that a routine of [`crate::gate::string`] cannot
//! execute comes here too, once an instruction has accessed display memory. The monitor's function
//! executes all of it, or as much as it can.
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context_displacements as at;
use crate::abi::fast_paths::{
    DEVICE_DUE, DISPLAY_WINDOW_SHIFT, DONE_DEVICE, KEY_MEMORY, STRING_KEY,
};
use crate::abi::memos::device_access::{DEVICE_ACCESSES, DeviceAccess, SPREAD_SITES};
use std::mem::offset_of;
use tollgate_x86::{CpuState, Gpr};

const _: () = assert!(size_of::<DeviceAccess>() == 32 && DEVICE_ACCESSES == 128);

fast_path_routines!(
    tollgate_device_start..tollgate_device_end,
    {
    // Keeps the registers that calls may change and that the instruction may name.
    ".macro tollgate_device_keeps",
    "mov [r15 + {rcx}], r10",
    "mov [r15 + {rsi}], rsi",
    "mov [r15 + {rdi}], rdi",
    "mov rcx, rdx",
    "tollgate_vectors_go",
    "mov rdx, rcx",
    ".endm",
    ".macro tollgate_device_puts_back",
    "test eax, eax",
    "jz 7f",
    "tollgate_vectors_return",
    "7:",
    "mov r10, [r15 + {rcx}]",
    "mov rsi, [r15 + {rsi}]",
    "mov rdi, [r15 + {rdi}]",
    ".endm",
    // Continues at `to` after a call, or leaves if the monitor must see to something first. A call
    // that has done nothing leads to `nothing`.
    ".macro tollgate_device_continues to, nothing",
    "test eax, eax",
    "jz \\nothing",
    "cmp eax, {device_due}",
    "je 7f",
    "mov rcx, [r15 + {pending}]",
    "cmp dword ptr [rcx], 0",
    "jne 7f",
    "mov rcx, \\to",
    "tollgate_continues rcx",
    "7:",
    "mov qword ptr [r15 + {done}], {done_device}",
    "tollgate_leaves",
    ".endm",
    ".weak tollgate_device_miss, tollgate_device_port, tollgate_device_string",
    ".hidden tollgate_device_miss, tollgate_device_port, tollgate_device_string",
    // On entry R8 is the port if the key does not contain it, R9 is the key, and R11 is where to
    // continue.
    "tollgate_device_port:",
    "tollgate_begins",
    "cmp qword ptr [r15 + {device_fast_path}], 0",
    "je 8f",
    "tollgate_device_keeps",
    "mov rsi, r8",
    "mov rdx, r9",
    // Calls require that the stack pointer is a multiple of 16, as it is here.
    "tollgate_calls {device_fast_path}, r11",
    "tollgate_device_puts_back",
    "tollgate_device_continues r11, 8f",
    "8:",
    "tollgate_leaves",
    // On entry R8 is the linear address.
    ".p2align 6",
    "tollgate_device_miss:",
    "shrx r9, r8, r15",
    "mov rcx, [r15 + {device_page}]",
    "lea rcx, [rcx + r9]",
    "jrcxz 1f",
    "mov ecx, {window_shift}",
    "shrx rcx, r8, rcx",
    "mov r9, [r15 + {display_window}]",
    "lea rcx, [rcx + r9]",
    "jrcxz 3f",
    "mov rcx, [r15 + {display_by_tables}]",
    "jrcxz 4f",
    "3:",
    "tollgate_begins",
    "jmp 2f",
    "4:",
    "jmp tollgate_miss",
    // The monitor has done nothing. The vector registers stay put aside.
    "9:",
    "tollgate_continues tollgate_miss",
    "1:",
    "tollgate_begins",
    "mov rcx, [r15 + {device_space}]",
    "test rcx, rcx",
    "jz 2f",
    "cmp rcx, [r15 + {cr3}]",
    "jne 9b",
    "2:",
    "mov ecx, [r15 + {exit_site}]",
    "imul eax, ecx, {spread_sites}",
    "shr eax, 25",
    "mov edx, eax",
    "shl eax, 5",
    // The monitor replaces the entry with that of the site.
    "lea r9, [r15 + rax + {accesses}]",
    "cmp qword ptr [r15 + {device_fast_path}], 0",
    "je 9b",
    "tollgate_device_keeps",
    "mov [r15 + {rbx}], rbx",
    "mov [r15 + {rbp}], rbp",
    "mov rsi, r8",
    "bts rdx, {key_memory}",
    "tollgate_calls {device_fast_path}, r9",
    "tollgate_device_puts_back",
    "mov rbx, [r15 + {rbx}]",
    "mov rbp, [r15 + {rbp}]",
    "tollgate_device_continues \"[r9 + {behind}]\", 9b",
    // Continues a repeated string instruction. On entry R11 is where to continue after it.
    ".p2align 6",
    "1:",
    "jmp tollgate_exit",
    "tollgate_device_string:",
    "mov rcx, [r15 + {display_known}]",
    "jrcxz 1b",
    "tollgate_begins",
    "cmp qword ptr [r15 + {device_fast_path}], 0",
    "je 8b",
    "tollgate_device_keeps",
    "xor esi, esi",
    "mov rdx, {string_key}",
    "tollgate_calls {device_fast_path}, r11",
    "tollgate_device_puts_back",
    "tollgate_device_continues r11, 8b",
    ".purgem tollgate_device_keeps",
    ".purgem tollgate_device_puts_back",
    ".purgem tollgate_device_continues",
    },
    rcx = const at::slot(Gpr::Rcx as u8),
    rbx = const at::slot(Gpr::Rbx as u8),
    rbp = const at::slot(Gpr::Rbp as u8),
    rsi = const at::slot(Gpr::Rsi as u8),
    rdi = const at::slot(Gpr::Rdi as u8),
    device_fast_path = const at::DEVICE_FAST_PATH,
    device_page = const at::DEVICE_PAGE,
    device_space = const at::DEVICE_SPACE,
    display_window = const at::DISPLAY_WINDOW,
    display_by_tables = const at::DISPLAY_BY_TABLES,
    window_shift = const DISPLAY_WINDOW_SHIFT,
    device_due = const DEVICE_DUE,
    done_device = const DONE_DEVICE,
    pending = const at::PENDING,
    exit_site = const at::EXIT_SITE,
    cr3 = const at::CPU + offset_of!(CpuState, cr3) as i32,
    spread_sites = const SPREAD_SITES as i32,
    accesses = const at::DEVICE_ACCESSES,
    behind = const offset_of!(DeviceAccess, behind),
    key_memory = const KEY_MEMORY,
    string_key = const STRING_KEY as i64,
    display_known = const at::DISPLAY_KNOWN,
);

unsafe extern "sysv64" {
    fn tollgate_device_port();
    fn tollgate_device_miss();
}

/// The address of the routine of IN and OUT.
pub fn address() -> u64 {
    tollgate_device_port as *const () as u64
}

/// The address to which emitted code jumps after a miss in the software TLB.
pub fn miss_address() -> u64 {
    tollgate_device_miss as *const () as u64
}
