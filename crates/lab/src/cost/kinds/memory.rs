//! Kinds of exit: translations of addresses, page faults, and code that is written.

use super::expected::{at_first, exits, exits_or_fast_paths};
use super::kind::{Batch, INVLPG, Kind, kind};
use tollgate_exits::ExitKind::*;

/// These kinds, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind(
        INVLPG,
        "INVLPG of a page in use",
        &[exits_or_fast_paths(Invlpg, 1)],
    ),
    kind(
        "tlb-miss-read",
        "read of a page that the software TLB does not hold: filled by a fast path",
        &[
            exits_or_fast_paths(TlbMissRead, 1),
            exits_or_fast_paths(Invlpg, 1),
        ],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "tlb-miss-write",
        "write to a page that the software TLB does not hold: filled by a fast path",
        &[
            exits_or_fast_paths(TlbMissWrite, 1),
            exits_or_fast_paths(Invlpg, 1),
        ],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "slow-access",
        "read across two pages that are not adjacent",
        &[exits(SlowAccess, 1)],
    ),
    kind(
        "page-fault",
        "page fault to the handler's first instruction",
        &[exits(GuestPageFault, 1)],
    ),
    kind(
        "page-fault-iret",
        "page fault and IRET",
        &[exits(GuestPageFault, 1), exits(Iret, 1)],
    ),
    kind(
        "link-miss",
        "call into a page whose links were dropped, and its return",
        &[exits(LinkMiss, 1), exits_or_fast_paths(Invlpg, 1)],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "indirect-miss",
        "indirect call into a page whose links were dropped, and its return",
        &[exits(IndirectMiss, 1), exits_or_fast_paths(Invlpg, 1)],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "call-return",
        "CALL and RET: translated, no exit",
        &[exits(IndirectMiss, 0)],
    ),
    kind(
        "code-write",
        "store to a page that holds translated code, next to the code: no exit",
        &[exits(CodeWrite, 0)],
    ),
    kind(
        "code-write-in-line",
        "store to 64 bytes that hold translated code, next to the code: no exit",
        &[at_first(CodeWrite)],
    ),
    kind(
        "patch-and-call",
        "store into an instruction's operand, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "patch-alternate",
        "store that makes one instruction another and back, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "patch-next",
        "store into the operand of the next instruction",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-1",
        "a new instruction written, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-16",
        "16 new instructions written, and a call of them",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-100",
        "100 new instructions written, which make two blocks, and a call of them",
        &[exits(CodeWrite, 2)],
    )
    .slow(),
    kind(
        "page-table-write",
        "a page-table entry gets another page",
        &[],
    ),
    kind(
        "page-table-use",
        "a page-table entry gets another page, INVLPG, and a read of the page",
        &[exits_or_fast_paths(Invlpg, 1)],
    ),
];
