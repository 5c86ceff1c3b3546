//! The metadata service in the guest's networks.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tollgate_firecracker::{Metadata, Resources};
use tollgate_host_facts::file_words::reading;
use tollgate_network::{Answer, InnerService, NetworkOptions, Responder};

use super::arguments::FirecrackerArguments;

/// The metadata that the guest's requests are answered from.
struct Answering(Metadata);

impl Responder for Answering {
    fn answer(&self, received: &mut Vec<u8>) -> Answer {
        let answer = self.0.answer(received);
        Answer {
            bytes: answer.bytes,
            is_last: answer.is_last,
        }
    }
}

/// The metadata that the flags ask for.
///
/// # Errors
/// One line says what is wrong with the file.
pub fn of(arguments: &FirecrackerArguments) -> Result<Metadata, String> {
    let limit = arguments.mmds_size_limit;
    let metadata = Metadata::new(limit.unwrap_or(arguments.http_api_max_payload_size));
    if let Some(path) = &arguments.metadata {
        let value = read(path).map_err(|why| format!("--metadata: '{}': {why}", path.display()))?;
        let stored = metadata.put(value);
        stored.map_err(|fault| format!("--metadata: {}", fault.message))?;
    }
    Ok(metadata)
}

fn read(path: &Path) -> Result<serde_json::Value, String> {
    let text = fs::read(path).map_err(|error| reading(&error).to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// Puts the service into the networks of the interfaces that the configuration names.
pub fn attach(metadata: &Metadata, resources: &Resources, networks: &mut [NetworkOptions]) {
    let Some(config) = &resources.mmds_config else {
        return;
    };
    let service = InnerService {
        address: config.ipv4_address,
        responder: Arc::new(Answering(metadata.clone())),
    };
    for (interface, options) in resources.network_interfaces.iter().zip(networks) {
        if config.network_interfaces.contains(&interface.iface_id) {
            options.inner_service = Some(service.clone());
        }
    }
}
