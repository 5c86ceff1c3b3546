//! The file of `--config-file`: all of the configuration in one object.

use serde::Deserialize;

use crate::bodies::{
    Balloon, Body, BootSource, Drive, Entropy, Logger, MachineConfig, MetadataConfig, Metrics,
    NetworkInterface, Serial, Vsock, parse,
};
use crate::fault::Fault;
use crate::route::Request;

/// The contents of a configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ConfigFile {
    boot_source: BootSource,
    drives: Vec<Drive>,
    #[serde(default)]
    machine_config: Option<MachineConfig>,
    #[serde(default)]
    network_interfaces: Vec<NetworkInterface>,
    #[serde(default)]
    vsock: Option<Vsock>,
    #[serde(default)]
    entropy: Option<Entropy>,
    #[serde(default)]
    serial: Option<Serial>,
    #[serde(default)]
    logger: Option<Logger>,
    #[serde(default)]
    metrics: Option<Metrics>,
    #[serde(default)]
    balloon: Option<Balloon>,
    #[serde(default)]
    mmds_config: Option<MetadataConfig>,
    // What Tollgate has nothing for may be null, as in the files that GET /vm/config returns.
    #[serde(default)]
    cpu_config: Option<serde_json::Value>,
    #[serde(default)]
    pmem: Vec<serde_json::Value>,
    #[serde(default)]
    memory_hotplug: Option<serde_json::Value>,
}

impl Body for ConfigFile {
    fn check(&self) -> Result<(), Fault> {
        let lacks = |name| {
            Err(Fault::field(
                name,
                "Tollgate has nothing for it; leave it out",
            ))
        };
        match () {
            () if self.cpu_config.is_some() => lacks("cpu-config"),
            () if !self.pmem.is_empty() => lacks("pmem"),
            () if self.memory_hotplug.is_some() => lacks("memory-hotplug"),
            () => Ok(()),
        }
    }
}

impl ConfigFile {
    /// Parses a file.
    ///
    /// # Errors
    /// One line says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        parse(bytes)
    }

    /// The requests that say the same as the file, each checked.
    ///
    /// # Errors
    /// One line names the field that is wrong.
    pub fn requests(self) -> Result<Vec<Request>, Fault> {
        let mut requests = Vec::new();
        // Messages about the rest go where the file says.
        add(&mut requests, self.logger, Request::PutLogger)?;
        add(&mut requests, self.metrics, Request::PutMetrics)?;
        add(
            &mut requests,
            self.machine_config,
            Request::PutMachineConfig,
        )?;
        add(&mut requests, [self.boot_source], Request::PutBootSource)?;
        add(&mut requests, self.drives, Request::PutDrive)?;
        add(
            &mut requests,
            self.network_interfaces,
            Request::PutNetworkInterface,
        )?;
        add(&mut requests, self.mmds_config, Request::PutMetadataConfig)?;
        add(&mut requests, self.balloon, Request::PutBalloon)?;
        add(&mut requests, self.vsock, Request::PutVsock)?;
        add(&mut requests, self.entropy, Request::PutEntropy)?;
        add(&mut requests, self.serial, Request::PutSerial)?;
        Ok(requests)
    }
}

fn add<T: Body>(
    requests: &mut Vec<Request>,
    bodies: impl IntoIterator<Item = T>,
    request: fn(T) -> Request,
) -> Result<(), Fault> {
    for body in bodies {
        body.check()?;
        requests.push(request(body));
    }
    Ok(())
}
