//! Tests the metadata service of `tollgate-firecracker` with a Linux guest, before and after a
//! snapshot.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::firecracker::{Client, firecracker};
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;

/// What the guest has to read.
fn content(name: &str) -> Value {
    json!({"latest": {"meta-data": {"ami-id": name, "more": {"count": 3}}}})
}

fn boot_source(folder: &Folder) -> Value {
    let initramfs = linux::initramfs_with_modules(DEBIAN_AMD64);
    json!({
        "kernel_image_path": fetched("debian-amd64/vmlinux"),
        "initrd_path": folder.file("initrd.img", &initramfs),
        "boot_args": "console=ttyS0",
    })
}

fn interface() -> Value {
    json!({"iface_id": "eth0", "host_dev_name": "user"})
}

/// A process that waits for requests, and a client.
fn started(folder: &Folder, name: &str) -> (Session, Client) {
    let socket = folder.path(name);
    let mut command = firecracker();
    command
        .args(["--confine", "strict", "--api-sock"])
        .arg(&socket);
    (Session::over_pipes(command), Client::new(&socket))
}

/// Loads the modules and gives the interface its address.
fn prepare(guest: &mut Session) {
    linux::load_modules(guest);
    guest.shell("ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up");
    guest.shell("route add default gw 10.0.2.2");
}

/// What a request of the guest is answered.
fn asked(guest: &mut Session, address: &str, request: &str) -> String {
    let request = request.replace('\n', "\\r\\n");
    guest.shell(&format!(
        "printf '{request}\\r\\nConnection: close\\r\\n\\r\\n' | nc {address} 80 | tr -d '\\r'"
    ))
}

#[test]
fn a_guest_reads_its_metadata_in_sessions_and_a_clone_its_own() {
    let folder = Folder::new();
    let (mut guest, client) = started(&folder, "first");
    client.order("PUT", "/boot-source", boot_source(&folder));
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 192});
    client.order("PUT", "/machine-config", machine);
    client.order("PUT", "/network-interfaces/eth0", interface());
    let config = json!({"network_interfaces": ["eth0"], "version": "V2"});
    client.order("PUT", "/mmds/config", config);
    client.order("PUT", "/mmds", content("ami-1"));
    client.order("PUT", "/actions", json!({"action_type": "InstanceStart"}));
    linux::wait_for_shell(&mut guest);
    prepare(&mut guest);

    let address = "169.254.169.254";
    let none = asked(&mut guest, address, "GET /latest HTTP/1.1");
    assert!(none.starts_with("HTTP/1.1 401 "), "{none}");
    guest.shell(
        "token() { printf 'PUT /latest/api/token HTTP/1.1\\r\\nX-metadata-token-ttl-seconds: 60\\r\\n\
         Connection: close\\r\\n\\r\\n' | nc 169.254.169.254 80 | tail -n 1; }",
    );
    guest.shell(
        "get() { wget -q -O - --header \"X-metadata-token: $(token)\" --header \"Accept: $2\" \
         http://169.254.169.254$1; }",
    );
    assert_eq!(
        guest.shell("get /latest/meta-data/ text/plain"),
        "ami-id\nmore/"
    );
    assert_eq!(
        guest.shell("get /latest/meta-data/more application/json; echo"),
        r#"{"count":3}"#
    );
    // A client of the interface changes a part while the guest runs.
    let patch = json!({"latest": {"meta-data": {"ami-id": "x".repeat(40_000)}}});
    client.order("PATCH", "/mmds", patch);
    let bytes = guest.shell("get /latest/meta-data/ami-id '*/*' | wc -c");
    assert_eq!(bytes, "40000");
    // The rest of the link stays closed.
    let refused = guest.shell("nc 169.254.169.253 80 </dev/null 2>&1");
    assert!(refused.contains("nc: "), "{refused}");

    let (state, memory) = (folder.path("state"), folder.path("memory"));
    client.order("PATCH", "/vm", json!({"state": "Paused"}));
    let save = json!({"snapshot_path": state, "mem_file_path": memory});
    client.order("PUT", "/snapshot/create", save);
    client.order("PATCH", "/vm", json!({"state": "Resumed"}));
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));

    let (mut clone, client) = started(&folder, "clone");
    let load = |state: &Path, memory: &Path| {
        json!({"snapshot_path": state, "resume_vm": true,
               "mem_backend": {"backend_type": "File", "backend_path": memory}})
    };
    client.order("PUT", "/snapshot/load", load(&state, &memory));
    assert_eq!(client.get("/mmds"), Value::Null);
    let lost = clone.shell("get /latest '*/*' 2>&1");
    assert!(lost.contains("404"), "{lost}");
    client.order("PUT", "/mmds", content("ami-2"));
    assert_eq!(
        clone.shell("get /latest/meta-data/ami-id text/plain; echo"),
        "ami-2"
    );
    clone.type_line("poweroff -f");
    assert_eq!(clone.end().code, Some(0));
}

#[test]
fn a_configuration_file_says_where_the_guest_finds_its_metadata() {
    let folder = Folder::new();
    let config = json!({
        "boot-source": boot_source(&folder),
        "drives": [],
        "network-interfaces": [interface()],
        "mmds-config": {"network_interfaces": ["eth0"], "ipv4_address": "169.254.170.2",
                        "imds_compat": true},
    });
    let config = folder.file("vm.json", config.to_string().as_bytes());
    let metadata = folder.file("metadata.json", content("ami-3").to_string().as_bytes());
    let mut command = firecracker();
    command.args(["--no-api", "--enable-pci", "--config-file"]);
    command.arg(config).arg("--metadata").arg(metadata);
    let mut guest = linux::boot(command);
    prepare(&mut guest);
    // A route to the link, as Firecracker's guide has it: the guest asks for the address by ARP.
    guest.shell("route add -host 169.254.170.2 dev eth0");
    let request = "GET /latest/meta-data/ami-id HTTP/1.1\nAccept: application/json";
    let answer = asked(&mut guest, "169.254.170.2", request);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("Content-Type: text/plain"), "{answer}");
    assert!(answer.ends_with("\n\nami-3"), "{answer}");
    let closed = guest.shell("nc 169.254.169.254 80 </dev/null 2>&1");
    assert!(closed.contains("nc: "), "{closed}");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}
