//! Refusals, in Firecracker's form.

use serde_json::json;

use crate::http::{Response, Status};

/// Why a request is refused: one line, which names the field if one is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What is wrong and, where possible, what to do.
    pub message: String,
    /// The status of the answer.
    pub status: Status,
}

impl Fault {
    /// A request that is wrong or cannot be carried out.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            status: Status::BadRequest,
        }
    }

    /// A field with a value that cannot be used.
    pub fn field(name: &str, why: &str) -> Self {
        Self::new(format!("{name}: {why}"))
    }

    /// The answer that reports this.
    pub fn response(&self) -> Response {
        let body = json!({"fault_message": self.message});
        Response::with_body(self.status, body.to_string())
    }
}
