//! The guest's x87 and vector registers around the monitor's functions that fast paths call.
//!
//! Such a function uses the host's vector registers. If the guest's are loaded, they are stored
//! before the call, as on the way out ([`crate::gate::entry`]). If guest code continues they are
//! loaded again after the call, since the rest of its block may rely on them. If an exit is taken
//! instead, they are already where the exit would have stored them, and the context says so.
//!
//! The routines are called while the rest of a fast path's registers are in use. They change only
//! RAX and RDX, or only RCX and RDX where RAX must stay. Signal handlers treat the routines as part
//! of the monitor: a request to leave sets `pending`, which is tested after the routines.

use crate::abi::context_displacements as at;
use std::arch::global_asm;
use tollgate_x86::xsave::HEADER;

global_asm!(
    ".weak tollgate_vectors_aside, tollgate_vectors_back",
    ".hidden tollgate_vectors_aside, tollgate_vectors_back",
    ".p2align 6",
    // Changes RAX, RDX and the flags.
    "tollgate_vectors_aside:",
    "mov eax, [r15 + {vector_components}]",
    "xor edx, edx",
    "cmp qword ptr [r15 + {compacts_vectors}], 0",
    "je 1f",
    "xsavec [r15 + {vector_area}]",
    // XSAVEC does not store MXCSR if SSE's registers are initial.
    "stmxcsr [r15 + {vector_area} + 24]",
    "jmp 2f",
    "1:",
    "xsave [r15 + {vector_area}]",
    "2:",
    // Notes which components the area contains now: their values there are stale as soon as the
    // components become initial again.
    "mov rax, [r15 + {vector_area} + {header}]",
    "or [r15 + {vectors_before}], rax",
    "fninit",
    "ldmxcsr [rip + 3f]",
    "mov qword ptr [r15 + {vectors_off}], 1",
    "mov qword ptr [r15 + {vectors_were_live}], 1",
    "ret",
    ".p2align 2",
    // The value of MXCSR that the C ABI requires.
    "3: .long 0x1f80",
    ".p2align 4",
    // Changes RCX, RDX and the flags.
    "tollgate_vectors_back:",
    "mov rcx, rax",
    "mov eax, [r15 + {vector_components}]",
    "xor edx, edx",
    // The header still has the form that XRSTOR needs, since `settle_vector_area` has not run.
    "xrstor [r15 + {vector_area}]",
    // XRSTOR of a compacted area does not load MXCSR if SSE's registers are initial.
    "ldmxcsr [r15 + {vector_area} + 24]",
    "mov qword ptr [r15 + {vectors_off}], 0",
    "mov qword ptr [r15 + {vectors_were_live}], 0",
    "mov rax, rcx",
    "ret",
    vector_components = const at::VECTOR_COMPONENTS,
    vector_area = const at::VECTOR_AREA,
    header = const HEADER,
    compacts_vectors = const at::COMPACTS_VECTORS,
    vectors_before = const at::VECTORS_BEFORE,
    vectors_off = const at::VECTORS_OFF,
    vectors_were_live = const at::VECTORS_WERE_LIVE,
);
