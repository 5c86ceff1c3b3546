//! Repeated string instructions, without leaving guest code.
//!
//! The code of such an instruction names its exit, loads R11 with the address behind itself and
//! jumps here by way of the context (`policy/string_routine.rs` says to which routine). The routine
//! takes the instruction page by page: it looks both operands up, has the host's own string
//! instruction do the elements that lie in one page of each, on host addresses, and puts RCX,
//! which lives in R10 outside these routines, RSI and RDI right. So overlaps come out as the processor makes them, even if two linear
//! pages are one in RAM, whose host addresses are one too. When nothing remains it jumps to
//! R11. What it cannot do is the exit that was named: an operand that is not in the software
//! TLB (a page that is not filled, not RAM, or holds translated code and is stored to), an
//! element across the end of a page, the direction flag. The monitor then does what remains.
//!
//! REP MOVSD in 32-bit code whose ECX is 1000 and EDI is 3FF0h:
//!
//! ```text
//! code of the block   lea r11, [behind]; mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! first part          EDI and ESI looked up, 4 elements to the end of a page: rep movsd
//!                     ECX = 996, EDI = 4000h
//! second part         996 elements, if ESI's page has as many: rep movsd
//! behind              jmp r11
//! ```
//!
//! Short moves are loads and stores instead, since the host's REP MOVS takes some 60 cycles to
//! begin.
//!
//! A signal handler that interrupts asks [`Stage::at`]. At the host's string instruction, and
//! while operands are looked up, the guest stands between two iterations, and [`Stage`] says
//! where its registers are. Elsewhere the handler lets the routine run on to such a place.

use crate::abi::at;
use crate::abi::context::Context;
use crate::abi::strings::{OPERATIONS, ROUTINES};
use std::arch::global_asm;
use std::ops::Range;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};
use tollgate_tlb::software_tlb::WRITE_TABLE_OFFSET;
use tollgate_x86::{Flags, Gpr};

/// Of the ways to reach memory, that of 64-bit code.
const LONG: usize = 1;
/// CMPS among the operations; SCAS is behind it.
const COMPARES_BOTH: Range<usize> = 8..16;

global_asm!(
    // The host address minus linear address of the operand at `pointer`, in `delta`; RAX at
    // most the number of elements from there to the end of its page. Uses RDX and R10.
    ".macro tollgate_string_operand reach, delta, pointer, pointer32, shift, loads",
    ".if \\reach == 1",
    "mov rdx, \\pointer",
    // An address that is not canonical is beyond the root.
    "sarx r10, rdx, r14",
    "lea \\delta, [r10 + 256]",
    "cmp \\delta, 511",
    "ja 8f",
    "mov r10, [r14 + r10*8 + {root}]",
    "sarx \\delta, rdx, r15",
    "add \\delta, \\delta",
    "lea r10, [r10 + \\delta*8]",
    ".else",
    "mov edx, \\pointer32",
    "shrx \\delta, rdx, r15",
    "add \\delta, \\delta",
    ".if \\reach == 2",
    "mov r10, [r14 + {root}]",
    "lea r10, [r10 + \\delta*8]",
    ".else",
    "lea r10, [r14 + \\delta*8]",
    ".endif",
    ".endif",
    ".if \\loads",
    "mov \\delta, [r10]",
    ".elseif \\reach",
    "mov \\delta, [r10 + {long_write}]",
    ".else",
    "mov \\delta, [r10 + {write}]",
    ".endif",
    "test \\delta, \\delta",
    "jz 8f",
    "not edx",
    "and edx, 0xfff",
    "add edx, 1",
    ".if \\shift",
    "shr edx, \\shift",
    ".endif",
    "cmp rax, rdx",
    "cmova rax, rdx",
    ".endm",
    // MOVS of at most 64 bytes that do not overlap, which the host's instruction takes long
    // to begin with: RAX elements; goes on at 21b or 7f, or else at 3f.
    ".macro tollgate_string_short shift, reach",
    "mov edx, eax",
    ".if \\shift",
    "shl edx, \\shift",
    ".endif",
    "cmp edx, 64",
    "ja 3f",
    // Destination minus source, plus length: below twice the length if they overlap.
    "lea rcx, [rdi + r9]",
    "sub rcx, rsi",
    "sub rcx, r8",
    "add rcx, rdx",
    "add edx, edx",
    "cmp rcx, rdx",
    "jb 3f",
    "shr edx, 1",
    "add r8, rsi",
    "add r9, rdi",
    ".if \\reach == 1",
    "add rsi, rdx",
    "add rdi, rdx",
    ".else",
    "add esi, edx",
    "add edi, edx",
    ".endif",
    "cmp edx, 8",
    "jb 14f",
    "mov rax, [r8 + rdx - 8]",
    "mov [r9 + rdx - 8], rax",
    "13:",
    "sub edx, 8",
    "jbe 16f",
    "mov rax, [r8]",
    "mov [r9], rax",
    "add r8, 8",
    "add r9, 8",
    "jmp 13b",
    "14:",
    "test dl, 4",
    "jz 15f",
    "mov eax, [r8]",
    "mov ecx, [r8 + rdx - 4]",
    "mov [r9], eax",
    "mov [r9 + rdx - 4], ecx",
    "jmp 16f",
    "15:",
    "movzx eax, byte ptr [r8]",
    "movzx ecx, byte ptr [r8 + rdx - 1]",
    "mov [r9], al",
    "mov [r9 + rdx - 1], cl",
    // Of three bytes the second.
    "shr edx, 1",
    "movzx eax, byte ptr [r8 + rdx]",
    "mov [r9 + rdx], al",
    "16:",
    "mov rcx, r10",
    "test rcx, rcx",
    "jnz 21b",
    "jmp 7f",
    ".endm",
    // `moves`: uses RSI; `compares`: 0, or 1 while equal, or 2 while not equal.
    ".macro tollgate_string instruction, shift, reach, moves, compares",
    ".p2align 5",
    "20:",
    "mov rcx, r10",
    "mov [r15 + {rax}], rax",
    "mov [r15 + {rdx}], rdx",
    "mov [r15 + {rcx}], rcx",
    "lahf",
    "seto al",
    "mov [r15 + {flags}], ax",
    "cmp qword ptr [r15 + {direction}], 1",
    "jne 8f",
    // Before each part: registers as the guest knows them, but RAX, RDX and the flags; RCX is
    // in its namesake.
    "21:",
    ".if \\reach == 1",
    "mov rax, rcx",
    "test rax, rax",
    ".else",
    "mov eax, ecx",
    "test eax, eax",
    ".endif",
    "jz 7f",
    "tollgate_string_operand \\reach, r9, rdi, edi, \\shift, \\compares",
    ".if \\moves",
    "tollgate_string_operand \\reach, r8, rsi, esi, \\shift, 1",
    ".endif",
    "test rax, rax",
    "jz 8f",
    // What remains behind this part.
    ".if \\reach == 1",
    "mov r10, rcx",
    ".else",
    "mov r10d, ecx",
    ".endif",
    "sub r10, rax",
    "22:",
    ".if \\reach != 1",
    "mov edi, edi",
    ".if \\moves",
    "mov esi, esi",
    ".endif",
    ".endif",
    ".if \\moves && \\compares == 0",
    "tollgate_string_short \\shift, \\reach",
    "3:",
    ".endif",
    "mov rcx, rax",
    "add rdi, r9",
    ".if \\moves",
    "add rsi, r8",
    ".endif",
    ".if \\compares",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    ".endif",
    "mov rax, [r15 + {rax}]",
    "23:",
    "\\instruction",
    "24:",
    ".if \\compares",
    "lahf",
    "seto al",
    "mov edx, eax",
    ".endif",
    "sub rdi, r9",
    ".if \\moves",
    "sub rsi, r8",
    ".endif",
    ".if \\reach != 1",
    "mov edi, edi",
    ".if \\moves",
    "mov esi, esi",
    ".endif",
    ".endif",
    "add rcx, r10",
    ".if \\compares",
    "test rcx, rcx",
    "jz 6f",
    "test dh, 0x40",
    ".if \\compares == 1",
    "jz 6f",
    ".else",
    "jnz 6f",
    ".endif",
    "cmp qword ptr [r15 + {shows_each}], 0",
    "je 21b",
    "mov [r15 + {flags}], dx",
    "jmp 21b",
    "6:",
    "mov [r15 + {flags}], dx",
    ".else",
    "test rcx, rcx",
    "jnz 21b",
    ".endif",
    "7:",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    "mov rdx, [r15 + {rdx}]",
    "mov r10, rcx",
    "jmp r11",
    "8:",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    "mov rdx, [r15 + {rdx}]",
    "mov r10, rcx",
    "jmp tollgate_exit",
    "25:",
    ".pushsection .rodata.tollgate_string_places, \"a\"",
    ".long 20b - tollgate_string_start",
    ".long 21b - tollgate_string_start",
    ".long 22b - tollgate_string_start",
    ".long 23b - tollgate_string_start",
    ".long 25b - tollgate_string_start",
    ".popsection",
    ".endm",
    ".macro tollgate_strings reach",
    "tollgate_string \"rep movsb\", 0, \\reach, 1, 0",
    "tollgate_string \"rep movsw\", 1, \\reach, 1, 0",
    "tollgate_string \"rep movsd\", 2, \\reach, 1, 0",
    "tollgate_string \"rep movsq\", 3, \\reach, 1, 0",
    "tollgate_string \"rep stosb\", 0, \\reach, 0, 0",
    "tollgate_string \"rep stosw\", 1, \\reach, 0, 0",
    "tollgate_string \"rep stosd\", 2, \\reach, 0, 0",
    "tollgate_string \"rep stosq\", 3, \\reach, 0, 0",
    "tollgate_string \"repe cmpsb\", 0, \\reach, 1, 1",
    "tollgate_string \"repe cmpsw\", 1, \\reach, 1, 1",
    "tollgate_string \"repe cmpsd\", 2, \\reach, 1, 1",
    "tollgate_string \"repe cmpsq\", 3, \\reach, 1, 1",
    "tollgate_string \"repne cmpsb\", 0, \\reach, 1, 2",
    "tollgate_string \"repne cmpsw\", 1, \\reach, 1, 2",
    "tollgate_string \"repne cmpsd\", 2, \\reach, 1, 2",
    "tollgate_string \"repne cmpsq\", 3, \\reach, 1, 2",
    "tollgate_string \"repe scasb\", 0, \\reach, 0, 1",
    "tollgate_string \"repe scasw\", 1, \\reach, 0, 1",
    "tollgate_string \"repe scasd\", 2, \\reach, 0, 1",
    "tollgate_string \"repe scasq\", 3, \\reach, 0, 1",
    "tollgate_string \"repne scasb\", 0, \\reach, 0, 2",
    "tollgate_string \"repne scasw\", 1, \\reach, 0, 2",
    "tollgate_string \"repne scasd\", 2, \\reach, 0, 2",
    "tollgate_string \"repne scasq\", 3, \\reach, 0, 2",
    ".endm",
    ".weak tollgate_string_start, tollgate_string_end, tollgate_string_places",
    ".hidden tollgate_string_start, tollgate_string_end, tollgate_string_places",
    ".pushsection .rodata.tollgate_string_places, \"a\"",
    ".p2align 2",
    "tollgate_string_places:",
    ".popsection",
    ".p2align 6",
    "tollgate_string_start:",
    "tollgate_strings 0",
    "tollgate_strings 1",
    "tollgate_strings 2",
    "tollgate_string_end:",
    ".purgem tollgate_strings",
    ".purgem tollgate_string",
    ".purgem tollgate_string_operand",
    ".purgem tollgate_string_short",
    root = const LONG_ROOT_DISPLACEMENT,
    long_write = const LONG_WRITE_DISPLACEMENT,
    write = const WRITE_TABLE_OFFSET,
    direction = const at::DIRECTION,
    flags = const at::STRING_FLAGS,
    shows_each = const at::STRING_SHOWS_EACH,
    rax = const at::slot(Gpr::Rax as u8),
    rcx = const at::slot(Gpr::Rcx as u8),
    rdx = const at::slot(Gpr::Rdx as u8),
);

/// Where the parts of a routine begin, from the start of the first.
#[derive(Clone, Copy)]
#[repr(C)]
struct Places {
    start: u32,
    /// Operands are looked up: of each part anew.
    between: u32,
    prepared: u32,
    /// The host's string instruction.
    running: u32,
    end: u32,
}

unsafe extern "sysv64" {
    fn tollgate_string_start();
    fn tollgate_string_end();
}

unsafe extern "C" {
    static tollgate_string_places: [Places; ROUTINES];
}

fn places() -> &'static [Places; ROUTINES] {
    // SAFETY: the table is constant data, one entry for each routine: the assembly above
    // writes five doublewords each time it assembles one.
    unsafe { &tollgate_string_places }
}

/// Addresses of the routines.
pub fn addresses() -> [u64; ROUTINES] {
    let first = tollgate_string_start as *const () as u64;
    places().map(|places| first + u64::from(places.start))
}

/// Where the guest is while a routine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// At no boundary.
    Undivided,
    /// Between two iterations, or before the first: RAX and RDX are in their slots, and the
    /// arithmetic flags in the context.
    Between,
    /// The same, and RCX, RSI and RDI are those of the host's instruction.
    Running,
}

/// A routine that a signal interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted {
    routine: usize,
    /// Where.
    pub stage: Stage,
}

impl Interrupted {
    /// The routine at this host address.
    pub fn at(pc: u64) -> Option<Self> {
        if !is_here(pc) {
            return None;
        }
        let offset = (pc - tollgate_string_start as *const () as u64) as u32;
        let holds = |places: &Places| (places.start..places.end).contains(&offset);
        let routine = places().iter().position(holds)?;
        let places = places()[routine];
        let stage = match offset {
            _ if offset == places.running => Stage::Running,
            _ if (places.between..places.prepared).contains(&offset) => Stage::Between,
            _ => Stage::Undivided,
        };
        Some(Self { routine, stage })
    }

    /// Puts the guest's registers into a signal frame, and says whether iterations are done.
    /// In [`Stage::Undivided`] they cannot be told.
    pub(crate) fn put_back(&self, context: &mut Context, registers: &mut [i64; 23]) -> bool {
        let operation = self.routine % OPERATIONS;
        let is_narrow = self.routine / OPERATIONS != LONG;
        let uses_source = operation < 4 || COMPARES_BOTH.contains(&operation);
        let compares = operation >= COMPARES_BOTH.start;
        let of = |registers: &[i64; 23], register: i32| registers[register as usize];
        let narrowed = |value: i64| {
            if is_narrow {
                value & 0xffff_ffff
            } else {
                value
            }
        };
        if self.stage == Stage::Running {
            let [source, destination, behind] =
                [libc::REG_R8, libc::REG_R9, libc::REG_R10].map(|it| of(registers, it));
            let mut change = |register: i32, by: i64| {
                let place = &mut registers[register as usize];
                *place = narrowed(place.wrapping_add(by));
            };
            change(libc::REG_RCX, behind);
            change(libc::REG_RDI, destination.wrapping_neg());
            if uses_source {
                change(libc::REG_RSI, source.wrapping_neg());
            }
        }
        let shows_flags =
            self.stage == Stage::Running && compares && context.string_shows_each != 0;
        if !shows_flags {
            let arithmetic = Flags::ARITHMETIC.bits() as i64;
            let kept = context.arithmetic;
            context.arithmetic = context.string_flags;
            let flags = &mut registers[libc::REG_EFL as usize];
            *flags = *flags & !arithmetic | context.arithmetic_flags() as i64;
            context.arithmetic = kept;
        }
        registers[libc::REG_RAX as usize] = *context.slot_mut(Gpr::Rax as u8) as i64;
        registers[libc::REG_RDX as usize] = *context.slot_mut(Gpr::Rdx as u8) as i64;
        registers[libc::REG_R10 as usize] = of(registers, libc::REG_RCX);
        let before = *context.slot_mut(Gpr::Rcx as u8) as i64;
        narrowed(before) != narrowed(of(registers, libc::REG_RCX))
    }
}

/// A routine runs at this host address.
pub fn is_here(pc: u64) -> bool {
    let first = tollgate_string_start as *const () as u64;
    (first..tollgate_string_end as *const () as u64).contains(&pc)
}
