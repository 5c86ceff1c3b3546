//! The one list of all requests and of the fields of their bodies, with what Tollgate does with each.

use std::fmt::Write;

/// What Tollgate does with a field, or with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// It does what Firecracker's description says.
    Done,
    /// It is accepted and makes no difference.
    NoDifference,
    /// Some values are refused.
    Partly,
    /// It is refused.
    Refused,
}

impl Treatment {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NoDifference => "accepted, makes no difference",
            Self::Partly => "partly",
            Self::Refused => "refused",
        }
    }
}

/// A request of the description.
#[derive(Debug)]
pub struct Endpoint {
    /// The method and the path.
    pub request: &'static str,
    /// What Tollgate does with it.
    pub treatment: Treatment,
    /// What there is to know about it.
    pub note: &'static str,
    /// The fields of its body.
    pub fields: &'static [Field],
}

/// A field: its name, what Tollgate does with it, and what there is to know about it.
pub type Field = (&'static str, Treatment, &'static str);

use Treatment::{Done, NoDifference, Partly, Refused};

const LIMITER: &str = "a limiter without limits is accepted; Tollgate does not limit rates";

const MACHINE_CONFIG: &[Field] = &[
    ("vcpu_count", Partly, "1: a guest has one processor"),
    ("mem_size_mib", Done, ""),
    ("smt", NoDifference, "there is one processor"),
    (
        "cpu_template",
        Partly,
        "None; see --cpu for a processor that is the same on every host",
    ),
    (
        "track_dirty_pages",
        NoDifference,
        "differences are always possible",
    ),
    (
        "huge_pages",
        Partly,
        "None and Transparent, which make no difference; not 2M",
    ),
];

/// All requests of Firecracker's description, in its order.
pub const TREATMENTS: &[Endpoint] = &[
    plain(
        "GET /",
        "The version is that of the interface, with Tollgate's own after a plus sign.",
    ),
    Endpoint {
        request: "PUT /actions",
        treatment: Done,
        note: "InstanceStart, FlushMetrics, SendCtrlAltDel",
        fields: &[("action_type", Done, "")],
    },
    plain("GET /balloon", ""),
    Endpoint {
        request: "PUT /balloon",
        treatment: Done,
        note: "",
        fields: &[
            ("amount_mib", Done, ""),
            ("deflate_on_oom", Done, ""),
            ("stats_polling_interval_s", Done, ""),
            (
                "free_page_hinting",
                Refused,
                "free_page_reporting needs no requests",
            ),
            ("free_page_reporting", Done, "the same as --balloon"),
        ],
    },
    Endpoint {
        request: "PATCH /balloon",
        treatment: Done,
        note: "",
        fields: &[("amount_mib", Done, "")],
    },
    plain("GET /balloon/statistics", ""),
    Endpoint {
        request: "PATCH /balloon/statistics",
        treatment: Done,
        note: "",
        fields: &[(
            "stats_polling_interval_s",
            Done,
            "from 0 or to 0 only before the start",
        )],
    },
    lacking(
        "GET, PATCH /balloon/hinting/start",
        "See free_page_reporting.",
    ),
    Endpoint {
        request: "PUT /boot-source",
        treatment: Done,
        note: "",
        fields: &[
            ("kernel_image_path", Done, "a vmlinux; a bzImage works too"),
            ("initrd_path", Done, ""),
            (
                "boot_args",
                Done,
                "gets pci=off without --enable-pci, and root= for the root device",
            ),
        ],
    },
    lacking("PUT /cpu-config", "See --cpu."),
    Endpoint {
        request: "PUT /drives/{drive_id}",
        treatment: Done,
        note: "",
        fields: &[
            ("drive_id", Done, ""),
            ("is_root_device", Done, "the root device is the first disk"),
            ("partuuid", Done, ""),
            ("cache_type", Done, ""),
            ("is_read_only", Done, ""),
            (
                "path_on_host",
                Done,
                "a raw image; a name that ends with .qcow2 is one of that format",
            ),
            ("rate_limiter", Refused, LIMITER),
            ("io_engine", NoDifference, "each disk has a thread"),
            ("socket", Refused, "there are no vhost-user devices"),
        ],
    },
    Endpoint {
        request: "PATCH /drives/{drive_id}",
        treatment: Partly,
        note: "The guest learns the new size.",
        fields: &[
            ("drive_id", Done, ""),
            (
                "path_on_host",
                Done,
                "another image, or the same one after its size has changed",
            ),
            ("rate_limiter", Refused, LIMITER),
        ],
    },
    lacking("PUT, PATCH /pmem/{id}", "Give the image as a drive."),
    Endpoint {
        request: "PUT /logger",
        treatment: Done,
        note: "",
        fields: &[
            ("log_path", Done, "without it messages go to standard error"),
            ("level", Done, ""),
            ("show_level", Done, ""),
            (
                "show_log_origin",
                NoDifference,
                "messages name no places in the source",
            ),
            ("module", NoDifference, "messages belong to no modules"),
        ],
    },
    plain("GET /machine-config", ""),
    Endpoint {
        request: "PUT /machine-config",
        treatment: Done,
        note: "",
        fields: MACHINE_CONFIG,
    },
    Endpoint {
        request: "PATCH /machine-config",
        treatment: Done,
        note: "",
        fields: MACHINE_CONFIG,
    },
    Endpoint {
        request: "PUT /metrics",
        treatment: Done,
        note: "What Tollgate counts is under the key tollgate; of Firecracker's own counts there are those of \
               requests.",
        fields: &[("metrics_path", Done, "")],
    },
    plain("GET /mmds", ""),
    plain(
        "PUT /mmds",
        "--mmds-size-limit is the maximum number of bytes.",
    ),
    plain("PATCH /mmds", "A patch as RFC 7396 describes it."),
    Endpoint {
        request: "PUT /mmds/config",
        treatment: Done,
        note: "Snapshots have it; what is stored is not in them.",
        fields: &[
            ("version", Done, "V1, V2"),
            (
                "network_interfaces",
                Done,
                "with every kind of network, not only tap interfaces",
            ),
            ("ipv4_address", Done, ""),
            ("imds_compat", Done, ""),
        ],
    },
    Endpoint {
        request: "PUT /entropy",
        treatment: Done,
        note: "",
        fields: &[("rate_limiter", Refused, LIMITER)],
    },
    Endpoint {
        request: "PUT /serial",
        treatment: Done,
        note: "",
        fields: &[
            (
                "serial_out_path",
                Done,
                "without it the serial port is standard input and output",
            ),
            ("rate_limiter", Refused, LIMITER),
        ],
    },
    lacking(
        "GET, PUT, PATCH /hotplug/memory",
        "Give all memory as mem_size_mib.",
    ),
    Endpoint {
        request: "PUT /network-interfaces/{iface_id}",
        treatment: Done,
        note: "",
        fields: &[
            ("iface_id", Done, ""),
            (
                "host_dev_name",
                Done,
                "an interface of the host (tap) that you may use, otherwise user networking, which the header \
                 Tollgate-Note of the answer names; or a network as --net of tollgate run takes it, such as user",
            ),
            ("guest_mac", Done, ""),
            ("mtu", Refused, "set it in the guest"),
            ("rx_rate_limiter", Refused, LIMITER),
            ("tx_rate_limiter", Refused, LIMITER),
        ],
    },
    Endpoint {
        request: "PATCH /network-interfaces/{iface_id}",
        treatment: Partly,
        note: "",
        fields: &[
            ("iface_id", Done, ""),
            ("rx_rate_limiter", Refused, LIMITER),
            ("tx_rate_limiter", Refused, LIMITER),
        ],
    },
    Endpoint {
        request: "PUT /snapshot/create",
        treatment: Done,
        note: "",
        fields: &[
            (
                "mem_file_path",
                Done,
                "a snapshot of Tollgate (see tollgate snapshot), with the state of the devices",
            ),
            ("snapshot_path", Done, "what was configured, as JSON"),
            (
                "snapshot_type",
                Done,
                "Diff: a snapshot that names the file of the last one, which must stay there; the first one of a \
                 machine is full",
            ),
        ],
    },
    Endpoint {
        request: "PUT /snapshot/load",
        treatment: Done,
        note: "Snapshots of Firecracker itself cannot be loaded.",
        fields: &[
            ("snapshot_path", Done, ""),
            ("mem_file_path", Done, ""),
            ("mem_backend", Partly, "File; not Uffd"),
            (
                "enable_diff_snapshots",
                NoDifference,
                "differences are always possible",
            ),
            (
                "track_dirty_pages",
                NoDifference,
                "differences are always possible",
            ),
            ("resume_vm", Done, ""),
            ("network_overrides", Done, ""),
            ("vsock_override", Done, ""),
            ("clock_realtime", Done, ""),
        ],
    },
    plain("GET /version", ""),
    Endpoint {
        request: "PATCH /vm",
        treatment: Done,
        note: "",
        fields: &[("state", Done, "")],
    },
    plain("GET /vm/config", ""),
    Endpoint {
        request: "PUT /vsock",
        treatment: Done,
        note: "",
        fields: &[
            ("guest_cid", Done, ""),
            ("uds_path", Done, ""),
            (
                "vsock_id",
                NoDifference,
                "it has no meaning in Firecracker either",
            ),
        ],
    },
];

/// A request without fields.
const fn plain(request: &'static str, note: &'static str) -> Endpoint {
    Endpoint {
        request,
        treatment: Done,
        note,
        fields: &[],
    }
}

const fn lacking(request: &'static str, note: &'static str) -> Endpoint {
    Endpoint {
        request,
        treatment: Refused,
        note,
        fields: &[],
    }
}

/// The list as a document.
pub fn reference() -> String {
    let mut text = String::from(
        "# Firecracker's requests\n\n\
         What `tollgate-firecracker` does with each request of Firecracker's interface and each field of its body.\n\
         A refusal is an answer with status 400 that names the field. [The guide](../guide/firecracker.md) says how\n\
         to use it. This file is made from `crates/firecracker/src/treatments.rs`.\n\n\
         | request | field | | |\n|---|---|---|---|\n",
    );
    for endpoint in TREATMENTS {
        let treatment = endpoint.treatment.name();
        let _ = writeln!(
            text,
            "| `{}` | | {treatment} | {} |",
            endpoint.request, endpoint.note
        );
        for (name, treatment, note) in endpoint.fields {
            let _ = writeln!(text, "| | `{name}` | {} | {note} |", treatment.name());
        }
    }
    text
}
