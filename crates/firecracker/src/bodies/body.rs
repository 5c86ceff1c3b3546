//! What all bodies share: they are parsed and checked.

use serde::de::DeserializeOwned;

use crate::fault::Fault;

/// A request's body.
pub trait Body: DeserializeOwned {
    /// Checks what can be checked without the machine.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Parses and checks a body.
pub fn parse<T: Body>(bytes: &[u8]) -> Result<T, Fault> {
    // A map is demanded, because serde also takes a list for a structure.
    let is_map = bytes.trim_ascii_start().first() == Some(&b'{');
    if !is_map {
        return Err(wrong(&"expected an object"));
    }
    let body: T = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    body.check()?;
    Ok(body)
}

/// Parses a body that may be any JSON.
pub fn parse_any(bytes: &[u8]) -> Result<serde_json::Value, Fault> {
    serde_json::from_slice(bytes).map_err(|error| wrong(&error))
}

fn wrong(why: &dyn std::fmt::Display) -> Fault {
    let form = "An error occurred when deserializing the json body of a request";
    Fault::new(format!("{form}: {why}."))
}

/// Refuses a name that is not one of letters, digits and underscores, as Firecracker does.
pub(super) fn check_id(field: &str, id: &str) -> Result<(), Fault> {
    let is_good = |it: char| it.is_alphanumeric() || it == '_';
    match !id.is_empty() && id.chars().all(is_good) {
        true => Ok(()),
        false => Err(Fault::field(
            field,
            "an ID consists of letters, digits and underscores",
        )),
    }
}
