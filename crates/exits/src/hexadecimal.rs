//! Addresses in JSON: strings such as `"0xffffffff81000000"`, since JSON readers may keep only 53
//! bits of a number.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes `number` in hexadecimal with the prefix `0x`.
///
/// # Errors
///
/// The error of the serializer.
pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
///
/// The text has another format.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    let digits = text.strip_prefix("0x");
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| D::Error::custom(format_args!("'{text}' is not an address such as 0x1000")))
}
