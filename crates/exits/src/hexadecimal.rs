//! Addresses in JSON: texts such as `"0xffffffff81000000"`, since readers of JSON's numbers may
//! keep no more than 53 bits of them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes `number` with `0x`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// It is something else.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    let digits = text.strip_prefix("0x");
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| D::Error::custom(format_args!("'{text}' is no address such as 0x1000")))
}
