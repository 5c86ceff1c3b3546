//! The metadata service (MMDS): JSON that clients of the interface set and the guest reads.
//!
//! ```text
//!   client -- PUT, PATCH, GET /mmds --> Metadata <-- GET /latest/... -- guest (answers)
//!                                                <-- PUT /latest/api/token
//! ```
//!
//! What is stored belongs to no snapshot; the configuration does, so that a restored machine finds
//! the service where it was, and a client fills it again.

mod answers;
mod tokens;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use crate::bodies::{MetadataConfig, MetadataVersion};
use crate::fault::Fault;
use crate::http::Status;
use tokens::Tokens;

/// The stored metadata, shared by the interface and by what answers the guest.
#[derive(Clone, Debug)]
pub struct Metadata(Arc<Mutex<Store>>);

#[derive(Debug)]
struct Store {
    /// `None` until a client has stored something.
    value: Option<Value>,
    /// The maximum number of bytes of the value as JSON.
    limit: usize,
    version: MetadataVersion,
    imds_compat: bool,
    tokens: Tokens,
}

/// What the guest's client gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GuestAnswer {
    /// The bytes that are sent. They are empty as long as there is no whole request.
    pub bytes: Vec<u8>,
    /// Whether the connection is closed after these bytes.
    pub is_last: bool,
}

impl Metadata {
    /// An empty store for at most `limit` bytes of JSON.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Store {
            value: None,
            limit,
            version: MetadataVersion::default(),
            imds_compat: false,
            tokens: Tokens::default(),
        })))
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a configuration.
    pub fn configure(&self, config: &MetadataConfig) {
        let mut store = self.store();
        store.version = config.version;
        store.imds_compat = config.imds_compat;
    }

    /// What is stored; null if that is nothing.
    pub fn value(&self) -> Value {
        self.store().value.clone().unwrap_or_default()
    }

    /// Replaces what is stored.
    ///
    /// # Errors
    /// It is larger than the limit.
    pub fn put(&self, value: Value) -> Result<(), Fault> {
        let mut store = self.store();
        store.check(&value)?;
        store.value = Some(value);
        Ok(())
    }

    /// Merges a patch (RFC 7396) into what is stored.
    ///
    /// # Errors
    /// Nothing is stored, or the result is larger than the limit.
    pub fn patch(&self, patch: Value) -> Result<(), Fault> {
        let mut store = self.store();
        let mut merged = store.value.clone().ok_or_else(|| {
            Fault::new("The MMDS data store is not initialized. Give it a value (PUT /mmds).")
        })?;
        merge(&mut merged, patch);
        store.check(&merged)?;
        store.value = Some(merged);
        Ok(())
    }

    /// Takes whole requests out of the bytes that a client in the guest has sent, and answers them.
    pub fn answer(&self, received: &mut Vec<u8>) -> GuestAnswer {
        answers::answer(&mut self.store(), received)
    }
}

impl Store {
    fn check(&self, value: &Value) -> Result<(), Fault> {
        let bytes = value.to_string().len();
        if bytes <= self.limit {
            return Ok(());
        }
        let limit = self.limit;
        Err(Fault {
            message: format!(
                "The MMDS patch request doesn't fit: {bytes} bytes, and the limit is {limit} \
                 (--mmds-size-limit)."
            ),
            status: Status::PayloadTooLarge,
        })
    }
}

/// JSON Merge Patch (RFC 7396, section 2).
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(&name)),
            value => merge(target.entry(name).or_insert(Value::Null), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_merged_as_the_rfc_shows() {
        // Examples of RFC 7396, appendix A.
        for (original, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut target = original;
            merge(&mut target, patch);
            assert_eq!(target, result);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let metadata = Metadata::new(20);
        let early = metadata.patch(json!({})).unwrap_err();
        assert!(early.message.contains("not initialized"));
        assert_eq!(metadata.value(), Value::Null);
        metadata.put(json!({"a": "12345"})).unwrap();
        for result in [
            metadata.put(json!({"a": "12345678901234567890"})),
            metadata.patch(json!({"b": "1234567"})),
        ] {
            assert_eq!(result.unwrap_err().status, Status::PayloadTooLarge);
        }
        assert_eq!(metadata.value(), json!({"a": "12345"}));
    }
}
