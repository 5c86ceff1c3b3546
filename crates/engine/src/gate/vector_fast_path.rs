//! The fast path that loads the guest's x87 and vector registers when a block needs them.
//!
//! An exit has stored them; the routine loads them as the way in does ([`crate::gate::entry`]), but
//! without an exit. The block names the exit that it would take otherwise, loads R8 with the
//! address after itself and jumps here by way of the context. R11 stays as it is, since it may hold
//! the result of a shared look-up.
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context_displacements as at;
use crate::abi::fast_paths::FastPath;
use tollgate_x86::xsave::{COMPACTED, HEADER, XCOMP_BV};

fast_path_routines!(
    tollgate_vectors..tollgate_vectors_end,
    {
    "tollgate_begins",
    // Sets the header's form, as `Context::prepare_vector_load` does.
    "mov eax, [r15 + {vector_components}]",
    "and [r15 + {vector_area} + {header}], al",
    "cmp qword ptr [r15 + {compacts_vectors}], 0",
    "je 1f",
    "movabs rdx, {compacted}",
    "or rdx, rax",
    "mov [r15 + {vector_area} + {format}], rdx",
    "1:",
    "mov rdx, [r15 + {vector_area} + {header}]",
    "mov [r15 + {vectors_before}], rdx",
    "xor edx, edx",
    "xrstor [r15 + {vector_area}]",
    // XRSTOR of a compacted area does not load MXCSR if SSE's registers are initial.
    "ldmxcsr [r15 + {vector_area} + 24]",
    "mov qword ptr [r15 + {vectors_off}], 0",
    "inc qword ptr [r15 + {count}]",
    "tollgate_continues r8",
    },
    vector_components = const at::VECTOR_COMPONENTS,
    vector_area = const at::VECTOR_AREA,
    header = const HEADER,
    format = const XCOMP_BV,
    compacts_vectors = const at::COMPACTS_VECTORS,
    compacted = const COMPACTED as i64,
    vectors_before = const at::VECTORS_BEFORE,
    count = const at::fast_path_count(FastPath::Vectors),
);

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_vectors as *const () as u64
}
