//! How many requests came, under the names that Firecracker's metrics have for them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::http::Method;

/// The number of requests by method and kind.
#[derive(Debug, Default)]
pub struct RequestCounts(BTreeMap<(&'static str, String), (u64, u64)>);

impl RequestCounts {
    /// Counts a request, which was carried out or failed.
    pub fn add(&mut self, method: Method, path: &str, is_good: bool) {
        let group = match method {
            Method::Get => "get_api_requests",
            Method::Put => "put_api_requests",
            Method::Patch => "patch_api_requests",
        };
        let Some(kind) = kind(method, path) else {
            return;
        };
        let counts = self.0.entry((group, kind.to_owned())).or_default();
        counts.0 += 1;
        counts.1 += u64::from(!is_good);
    }

    /// The counts as part of the metrics.
    pub fn shown(&self) -> Map<String, Value> {
        let mut groups = Map::new();
        for ((group, kind), (count, fails)) in &self.0 {
            let group = groups.entry(*group).or_insert_with(|| json!({}));
            group[format!("{kind}_count")] = json!(count);
            group[format!("{kind}_fails")] = json!(fails);
        }
        groups
    }
}

/// The name of a kind of request in the metrics.
fn kind(method: Method, path: &str) -> Option<&'static str> {
    Some(match path.split('/').nth(1)? {
        "" => "instance_info",
        "version" => "vmm_version",
        "machine-config" if method == Method::Get => "machine_cfg",
        "machine-config" => "machine_cfg",
        "actions" => "actions",
        "boot-source" => "boot_source",
        "drives" => "drive",
        "network-interfaces" => "network",
        "vsock" => "vsock",
        "logger" => "logger",
        "metrics" => "metrics",
        "mmds" => "mmds",
        "balloon" => "balloon",
        "serial" => "serial",
        _ => return None,
    })
}
