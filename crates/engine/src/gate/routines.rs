//! What the routines of fast paths share: the way in, the way out, and the look-up in the software
//! TLB ([`crate::gate::fast_path`]).
//!
//! ```text
//! tollgate_begins                          stores RAX, RDX and the flags in the context
//! tollgate_finds_memo key, ...             finds the memo with a key
//! tollgate_looks_up to, tlb, long, write   finds a page in the software TLB
//! tollgate_compares base, offset, ...      reads a word of guest memory and compares it
//! tollgate_finds_code base, offset, done   finds the code that follows the instruction
//! tollgate_calls function, other           calls a function of the monitor
//! tollgate_restores                        loads RAX and the flags again
//! tollgate_continues to                    loads RAX, RDX and the flags again, and jumps to `to`
//! tollgate_leaves                          loads them again, and takes the exit that was named
//! ```
//!
//! A macro that does not find what it looks for jumps to the next label 9 of the file, where
//! routines have `tollgate_leaves`.

/// Assembles routines that begin at the label `$start` and end at the label `$end`. Their text may
/// use the macros above. Defines `is_here`, which tells whether a host address is in the routines.
///
/// Each use defines the macros for itself, since assembly in another file may be assembled apart.
macro_rules! fast_path_routines {
    (
        $start:ident .. $end:ident,
        { $($text:expr),* $(,)? },
        $($operands:tt)*
    ) => {
        std::arch::global_asm!(
            ".macro tollgate_begins",
            "mov [r15 + {rax}], rax",
            "mov [r15 + {rdx}], rdx",
            "lahf",
            "seto al",
            "mov [r15 + {flags}], ax",
            ".endm",
            // Restores the flags and RAX; changes nothing else.
            ".macro tollgate_restores",
            "movzx eax, word ptr [r15 + {flags}]",
            "add al, 0x7f",
            "sahf",
            "mov rax, [r15 + {rax}]",
            ".endm",
            ".macro tollgate_continues to",
            "tollgate_restores",
            "mov rdx, [r15 + {rdx}]",
            "jmp \\to",
            ".endm",
            ".macro tollgate_leaves",
            "tollgate_continues tollgate_exit",
            ".endm",
            // Yields the host address minus the linear address for data at R8 within one page, if
            // the software TLB at `tlb` contains the page. Changes RCX.
            ".macro tollgate_looks_up to, tlb, long, write",
            ".if \\long",
            "sarx rcx, r8, \\tlb",
            // An address that is not canonical lies outside the root table.
            "lea \\to, [rcx + 256]",
            "cmp \\to, 511",
            "ja 9f",
            "mov rcx, [\\tlb + rcx*8 + {long_root}]",
            "sarx \\to, r8, r15",
            "add \\to, \\to",
            ".if \\write",
            "mov \\to, [rcx + \\to*8 + {long_write}]",
            ".else",
            "mov \\to, [rcx + \\to*8]",
            ".endif",
            ".else",
            "mov ecx, r8d",
            "shr ecx, 12",
            "add ecx, ecx",
            ".if \\write",
            "mov \\to, [\\tlb + rcx*8 + {write}]",
            ".else",
            "mov \\to, [\\tlb + rcx*8]",
            ".endif",
            ".endif",
            "test \\to, \\to",
            "jz 9f",
            ".endm",
            // Sets RDX to the memo with the key in register `key`, or fails. The memos of the table
            // at `table` have 1 << `size` bytes and begin with their keys. Changes RAX.
            ".macro tollgate_finds_memo key, shift, size, table",
            "mov rax, {spread}",
            "imul rax, \\key",
            "shr rax, \\shift",
            "shl eax, \\size",
            "lea rdx, [r15 + rax + \\table]",
            "cmp [rdx], \\key",
            "je 1f",
            "xor eax, 1 << \\size",
            "lea rdx, [r15 + rax + \\table]",
            "cmp [rdx], \\key",
            "jne 9f",
            "1:",
            ".endm",
            // Looks the code at RCX up, as emitted code looks up the target of an indirect branch
            // (`first_choice` in `abi::link_layout`), in the table that the `CodeAfter` at `offset`
            // of `base` names. Sets R9 to the address of the entry, or takes the exit and says
            // there that the instruction is `finished`. Changes RAX, R8 and the flags.
            ".macro tollgate_finds_code base, offset, finished",
            "mov rax, [\\base + \\offset + {tag_after}]",
            "add rax, rcx",
            "mov r9d, ecx",
            "and r9d, {index_bits_in_place}",
            "add r9, [\\base + \\offset]",
            "lea r9, [r13 + r9*8 - {links_bias}]",
            "mov r8, [r9]",
            "add r8, rax",
            "jz 6f",
            "add r9, {entry_bytes}",
            "mov r8, [r9]",
            "add r8, rax",
            "jz 6f",
            "mov [r15 + {exit_value}], rcx",
            "mov qword ptr [r15 + {done}], \\finished",
            "jmp 9f",
            "6:",
            ".endm",
            // Copies 16 bytes. Changes RAX.
            ".macro tollgate_copies from, offset, to",
            "mov rax, [\\from + \\offset]",
            "mov [r15 + \\to], rax",
            "mov rax, [\\from + \\offset + 8]",
            "mov [r15 + \\to + 8], rax",
            ".endm",
            // Fails unless the word of memory that the `Watched` at `offset` of `base` names lies in
            // the software TLB at `tlb` and has the expected value. Without `masked`, all bits are
            // compared. R8 becomes the place, and RAX the host address minus the linear address.
            // Changes RCX.
            ".macro tollgate_compares base, offset, tlb, long, masked",
            "mov r8, [\\base + \\offset]",
            "tollgate_looks_up rax, \\tlb, \\long, 0",
            "mov rcx, [rax + r8]",
            ".if \\masked",
            "pext rcx, rcx, [\\base + \\offset + {watched_mask}]",
            ".endif",
            "cmp rcx, [\\base + \\offset + {watched_value}]",
            "jne 9f",
            ".endm",
            // Puts the guest's vector registers aside if they are loaded. Changes RAX, RDX and the
            // flags.
            ".macro tollgate_vectors_go",
            "cmp qword ptr [r15 + {vectors_off}], 0",
            "jne 6f",
            "call tollgate_vectors_aside",
            "6:",
            ".endm",
            // Calls a function of the monitor for this context. R11 and `other` survive; `other`
            // may be R11, which keeps the stack aligned.
            ".macro tollgate_calls function, other",
            "push r11",
            "push \\other",
            "lea rdi, [r15 - {bias}]",
            "call [r15 + \\function]",
            "pop \\other",
            "pop r11",
            ".endm",
            // Loads the guest's vector registers again if they were put aside. Changes RCX, RDX and
            // the flags.
            ".macro tollgate_vectors_return",
            "cmp qword ptr [r15 + {vectors_were_live}], 0",
            "je 6f",
            "call tollgate_vectors_back",
            "6:",
            ".endm",
            concat!(".weak ", stringify!($start), ", ", stringify!($end)),
            concat!(".hidden ", stringify!($start), ", ", stringify!($end)),
            ".p2align 6",
            concat!(stringify!($start), ":"),
            $($text,)*
            concat!(stringify!($end), ":"),
            ".purgem tollgate_begins",
            ".purgem tollgate_restores",
            ".purgem tollgate_continues",
            ".purgem tollgate_leaves",
            ".purgem tollgate_looks_up",
            ".purgem tollgate_finds_memo",
            ".purgem tollgate_finds_code",
            ".purgem tollgate_copies",
            ".purgem tollgate_compares",
            ".purgem tollgate_vectors_go",
            ".purgem tollgate_calls",
            ".purgem tollgate_vectors_return",
            rax = const $crate::abi::context_displacements::slot(tollgate_x86::Gpr::Rax as u8),
            rdx = const $crate::abi::context_displacements::slot(tollgate_x86::Gpr::Rdx as u8),
            flags = const $crate::abi::context_displacements::STRING_FLAGS,
            bias = const $crate::abi::context::BIAS,
            vectors_off = const $crate::abi::context_displacements::VECTORS_OFF,
            vectors_were_live = const $crate::abi::context_displacements::VECTORS_WERE_LIVE,
            long_root = const tollgate_tlb::long_tlb::LONG_ROOT_DISPLACEMENT,
            long_write = const tollgate_tlb::long_tlb::LONG_WRITE_DISPLACEMENT,
            write = const tollgate_tlb::software_tlb::WRITE_TABLE_OFFSET,
            watched_mask = const std::mem::offset_of!(tollgate_x86::Watched, mask),
            watched_value = const std::mem::offset_of!(tollgate_x86::Watched, value),
            spread = const $crate::abi::memos::SPREAD,
            tag_after = const std::mem::offset_of!($crate::abi::memos::CodeAfter, tag),
            index_bits_in_place = const $crate::abi::link_layout::INDEX_BITS_IN_PLACE,
            links_bias = const $crate::abi::link_layout::LINKS_BIAS,
            entry_bytes = const $crate::abi::link_layout::ENTRY_BYTES,
            exit_value = const $crate::abi::context_displacements::EXIT_VALUE,
            done = const $crate::abi::context_displacements::FAST_PATH_DONE,
            $($operands)*
        );

        unsafe extern "sysv64" {
            fn $start();
            fn $end();
        }

        /// Whether a routine of this file runs at this host address.
        pub fn is_here(pc: u64) -> bool {
            ($start as *const () as u64..$end as *const () as u64).contains(&pc)
        }
    };
}
