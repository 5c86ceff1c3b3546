//! Kinds of exit: hypercalls, CPUID, ports, registers of devices in memory, interrupts and requests to devices.

use super::expected::{Expected, at_first, at_least, exits, fast_path_of_device};
use super::kind::{Batch, Kind, kind};
use tollgate_exits::ExitKind::*;

/// The exits of a request to a virtio device in memory: the device is notified and its interrupt
/// acknowledged; fast paths write the local APIC's EOI. The device's thread may finish before the
/// guest sleeps; if its interrupt waits when STI lets it in, HLT is executed alone.
const REQUEST: &[Expected] = &[
    Expected {
        first: 16,
        ..exits(MmioWrite, 2)
    },
    exits(InterruptDelivered, 1),
    at_least(Halt, 0),
    at_least(Interrupted, 0),
    at_least(SingleStep, 0),
];

/// The exits of a request that reads eight sectors through the data register of an IDE disk: six registers are written,
/// and for each sector the disk interrupts, its status is read and REP INSW, which what happens outside may divide, takes
/// the data. After the first sector, the interrupt of the next one waits when STI lets it in.
const SECTORS_BY_PORT: &[Expected] = &[
    exits(PortOut, 6),
    at_least(PortIn, 16),
    exits(Sti, 8),
    exits(InterruptDelivered, 8),
    at_first(MmioWrite),
    at_least(Halt, 0),
    at_least(Interrupted, 0),
    at_least(SingleStep, 0),
];

/// The exits of the same request by the bus master: its list, its status and its start are written in addition, and it
/// is stopped; its status and the disk's are read.
const SECTORS_BY_MASTER: &[Expected] = &[
    exits(PortOut, 10),
    exits(PortIn, 2),
    exits(Sti, 1),
    exits(InterruptDelivered, 1),
    at_first(MmioWrite),
    at_least(Halt, 0),
    at_least(Interrupted, 0),
    at_least(SingleStep, 0),
];

/// These kinds, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind(
        "null-hypercall",
        "VMCALL that returns at once",
        &[exits(NullHypercall, 1)],
    ),
    kind(
        "hypercall",
        "VMCALL that answers with a version",
        &[exits(Hypercall, 1)],
    ),
    kind(
        "cpuid",
        "CPUID leaf 0: a fast path, no exit",
        &[at_first(Cpuid)],
    ),
    kind(
        "rdtsc",
        "RDTSC: translated, no exit",
        &[exits(TimeStamp, 0)],
    ),
    kind(
        "port-in",
        "IN from port 80h: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-in-serial",
        "IN from the serial port's line status: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-in-pm-timer",
        "IN from the power-management timer: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-out",
        "OUT to port 80h: a fast path, no exit",
        &[at_first(PortOut)],
    ),
    kind(
        "serial-byte",
        "OUT of a byte to the serial port",
        &[exits(PortOut, 1)],
    ),
    kind(
        "cmos-read",
        "OUT and IN: a register of the real-time clock",
        &[exits(PortOut, 1), exits(PortIn, 1)],
    ),
    kind(
        "timer-count",
        "IN from the 8254's counter: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "mmio-read",
        "read of the local APIC's ID: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioRead, 1)],
    ),
    kind(
        "mmio-write",
        "write of the local APIC's task priority: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioWrite, 1)],
    ),
    kind(
        "eoi",
        "write of the local APIC's EOI, nothing in service: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioWrite, 1)],
    ),
    kind(
        "self-ipi",
        "write of the local APIC's command register to the handler's first instruction",
        &[
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .batch(Batch::Whole),
    kind(
        "timer-interrupt",
        "the local APIC timer's deadline to the handler, arming included, the guest computing",
        &[
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .after_deadline(),
    kind(
        "hlt-to-timer",
        "the local APIC timer's deadline to the handler, arming included, the guest in HLT",
        &[
            exits(Halt, 1),
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .after_deadline(),
    kind(
        "disk-request-ide",
        "4 KiB read from an IDE disk by the data register, from the first register to the last word",
        SECTORS_BY_PORT,
    )
    .batch(Batch::Whole)
    .slow(),
    kind(
        "disk-request-dma",
        "4 KiB read from an IDE disk by its bus master, from the first register to the disk's status",
        SECTORS_BY_MASTER,
    )
    .batch(Batch::Whole)
    .slow(),
    kind(
        "disk-request-virtio",
        "4 KiB read from a virtio disk, from the notification to the interrupt's handler",
        REQUEST,
    )
    .batch(Batch::Whole)
    .slow(),
    kind(
        "packet-virtio",
        "packet handed to a virtio adapter, from the notification to the interrupt's handler",
        REQUEST,
    )
    .batch(Batch::Whole)
    .slow(),
];
