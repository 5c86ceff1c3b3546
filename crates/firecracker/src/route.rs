//! Which request a method, a path and a body are.

use serde_json::Value;

use crate::bodies::{
    ActionInfo, Balloon, BalloonUpdate, BootSource, Drive, DriveUpdate, Entropy, Logger,
    MachineConfig, MachineConfigUpdate, MetadataConfig, Metrics, NetworkInterface, NetworkUpdate,
    Serial, SnapshotCreate, SnapshotLoad, StatisticsUpdate, VmUpdate, Vsock, parse, parse_any,
};
use crate::fault::Fault;
use crate::http::{HttpRequest, Method};

/// A request, with its body.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the description")]
pub enum Request {
    GetInstance,
    GetVersion,
    GetVmConfig,
    GetMachineConfig,
    PutMachineConfig(MachineConfig),
    PatchMachineConfig(MachineConfigUpdate),
    PutBootSource(BootSource),
    PutDrive(Drive),
    PatchDrive(DriveUpdate),
    PutNetworkInterface(NetworkInterface),
    PatchNetworkInterface(NetworkUpdate),
    PutVsock(Vsock),
    PutEntropy(Entropy),
    PutSerial(Serial),
    PutLogger(Logger),
    PutMetrics(Metrics),
    GetBalloon,
    PutBalloon(Balloon),
    PatchBalloon(BalloonUpdate),
    GetStatistics,
    PatchStatistics(StatisticsUpdate),
    GetMetadata,
    PutMetadata(Value),
    PatchMetadata(Value),
    PutMetadataConfig(MetadataConfig),
    PutAction(ActionInfo),
    PatchVm(VmUpdate),
    CreateSnapshot(SnapshotCreate),
    LoadSnapshot(SnapshotLoad),
}

/// What Tollgate has nothing for, and what to do instead.
const LACKING: [(&str, &str); 4] = [
    (
        "/cpu-config",
        "Tollgate has no custom CPU templates; start tollgate-firecracker with --cpu MODEL",
    ),
    (
        "/pmem/",
        "Tollgate has no virtio-pmem device; give the image as a drive",
    ),
    (
        "/hotplug/memory",
        "Tollgate has no virtio-mem device; give all memory as mem_size_mib",
    ),
    (
        "/balloon/hinting",
        "Tollgate asks for no hints; free_page_reporting of PUT /balloon takes free pages back",
    ),
];

/// Finds out which request this is, and parses its body.
///
/// # Errors
/// There is no such request, or its body is wrong.
pub fn route(http: &HttpRequest) -> Result<Request, Fault> {
    let path = &*http.path;
    let unknown = || {
        let name = &http.method_name;
        Fault::new(format!(
            "Invalid request method and/or path: {name} {path}."
        ))
    };
    let method = http.method.ok_or_else(unknown)?;
    if let Some((_, why)) = LACKING.iter().find(|(begin, _)| path.starts_with(begin)) {
        return Err(Fault::new(format!("{} {path}: {why}.", method.name())));
    }
    let body = &*http.body;
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let request = match (method, &*parts) {
        (Method::Get, [""]) => Request::GetInstance,
        (Method::Get, ["version"]) => Request::GetVersion,
        (Method::Get, ["vm", "config"]) => Request::GetVmConfig,
        (Method::Get, ["machine-config"]) => Request::GetMachineConfig,
        (Method::Put, ["machine-config"]) => Request::PutMachineConfig(parse(body)?),
        (Method::Patch, ["machine-config"]) => Request::PatchMachineConfig(parse(body)?),
        (Method::Put, ["boot-source"]) => Request::PutBootSource(parse(body)?),
        (Method::Put, ["drives", id]) => {
            let drive: Drive = parse(body)?;
            same_id("drive_id", id, &drive.drive_id)?;
            Request::PutDrive(drive)
        }
        (Method::Patch, ["drives", id]) => {
            let update: DriveUpdate = parse(body)?;
            same_id("drive_id", id, &update.drive_id)?;
            Request::PatchDrive(update)
        }
        (Method::Put, ["network-interfaces", id]) => {
            let interface: NetworkInterface = parse(body)?;
            same_id("iface_id", id, &interface.iface_id)?;
            Request::PutNetworkInterface(interface)
        }
        (Method::Patch, ["network-interfaces", id]) => {
            let update: NetworkUpdate = parse(body)?;
            same_id("iface_id", id, &update.iface_id)?;
            Request::PatchNetworkInterface(update)
        }
        (Method::Put, ["vsock"]) => Request::PutVsock(parse(body)?),
        (Method::Put, ["entropy"]) => Request::PutEntropy(parse(body)?),
        (Method::Put, ["serial"]) => Request::PutSerial(parse(body)?),
        (Method::Put, ["logger"]) => Request::PutLogger(parse(body)?),
        (Method::Put, ["metrics"]) => Request::PutMetrics(parse(body)?),
        (Method::Get, ["balloon"]) => Request::GetBalloon,
        (Method::Put, ["balloon"]) => Request::PutBalloon(parse(body)?),
        (Method::Patch, ["balloon"]) => Request::PatchBalloon(parse(body)?),
        (Method::Get, ["balloon", "statistics"]) => Request::GetStatistics,
        (Method::Patch, ["balloon", "statistics"]) => Request::PatchStatistics(parse(body)?),
        (Method::Get, ["mmds"]) => Request::GetMetadata,
        (Method::Put, ["mmds"]) => Request::PutMetadata(parse_any(body)?),
        (Method::Patch, ["mmds"]) => Request::PatchMetadata(parse_any(body)?),
        (Method::Put, ["mmds", "config"]) => Request::PutMetadataConfig(parse(body)?),
        (Method::Put, ["actions"]) => Request::PutAction(parse(body)?),
        (Method::Patch, ["vm"]) => Request::PatchVm(parse(body)?),
        (Method::Put, ["snapshot", "create"]) => Request::CreateSnapshot(parse(body)?),
        (Method::Put, ["snapshot", "load"]) => Request::LoadSnapshot(parse(body)?),
        _ => return Err(unknown()),
    };
    Ok(request)
}

/// Refuses a body that is about something else than the path.
fn same_id(field: &str, in_path: &str, in_body: &str) -> Result<(), Fault> {
    match in_path == in_body {
        true => Ok(()),
        false => Err(Fault::field(
            field,
            &format!("the path says [{in_path}] and the body [{in_body}]"),
        )),
    }
}
