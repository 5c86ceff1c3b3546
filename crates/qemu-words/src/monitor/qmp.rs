//! QMP: JSON objects in, JSON objects out. A greeting, then capabilities, then commands.

use super::commands;
use super::fault::Fault;
use super::machine::{Event, Machine};
use super::queries::version;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest request in bytes.
const MOST_BYTES: usize = 1 << 20;

/// One client of QMP.
#[derive(Debug)]
pub struct Qmp {
    received: Vec<u8>,
    is_pretty: bool,
    is_ready: bool,
}

impl Qmp {
    /// A client that has not been greeted. `is_pretty`: answers have several lines.
    pub fn new(is_pretty: bool) -> Self {
        Self {
            received: Vec::new(),
            is_pretty,
            is_ready: false,
        }
    }

    /// Begins with a new client. Returns the greeting.
    pub fn open(&mut self) -> Vec<u8> {
        *self = Self::new(self.is_pretty);
        let version = version();
        self.written(&json!({"QMP": {"version": version, "capabilities": []}}))
    }

    /// Takes bytes of the client, carries complete requests out, and returns the answers.
    pub fn take(&mut self, bytes: &[u8], machine: &mut dyn Machine) -> Vec<u8> {
        self.received.extend(bytes);
        let mut answers = Vec::new();
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.received).into_iter();
            let request: Value = match values.next() {
                None => {
                    self.received.clear();
                    return answers;
                }
                Some(Ok(value)) => value,
                // The rest of a request comes later.
                Some(Err(error)) if error.is_eof() && self.received.len() <= MOST_BYTES => {
                    return answers;
                }
                Some(Err(error)) => {
                    // What follows begins with the next line.
                    let end = self.received.iter().position(|byte| *byte == b'\n');
                    let end = end.map_or(self.received.len(), |end| end + 1);
                    self.received.drain(..end);
                    let fault = Fault::generic(format!("JSON parse error, {error}"));
                    answers.extend(self.written(&json!({"error": fault.json()})));
                    continue;
                }
            };
            let end = values.byte_offset();
            self.received.drain(..end);
            let answer = self.answer(&request, machine);
            answers.extend(self.written(&answer));
        }
    }

    fn answer(&mut self, request: &Value, machine: &mut dyn Machine) -> Value {
        let result = self.execute(request, machine);
        let mut answer = match result {
            Ok(value) => json!({"return": value}),
            Err(fault) => json!({"error": fault.json()}),
        };
        if let Some(id) = request.get("id") {
            answer["id"] = id.clone();
        }
        answer
    }

    fn execute(&mut self, request: &Value, machine: &mut dyn Machine) -> Result<Value, Fault> {
        let request = request.as_object();
        let request = request.ok_or_else(|| Fault::generic("QMP input must be a JSON object"))?;
        let known = ["execute", "arguments", "id", "exec-oob"];
        if let Some(key) = request.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(Fault::generic(format!(
                "QMP input member '{key}' is unexpected"
            )));
        }
        let name = request.get("execute");
        let name = name.ok_or_else(|| Fault::generic("QMP input lacks member 'execute'"))?;
        let name = name.as_str();
        let name =
            name.ok_or_else(|| Fault::generic("QMP input member 'execute' must be a string"))?;
        let none = Value::Object(serde_json::Map::new());
        let arguments = request.get("arguments").unwrap_or(&none);
        if !arguments.is_object() {
            let why = "QMP input member 'arguments' must be an object";
            return Err(Fault::generic(why));
        }
        match (self.is_ready, name) {
            (false, "qmp_capabilities") => {
                self.is_ready = true;
                Ok(json!({}))
            }
            (false, _) => Err(Fault::no_command(
                "Expecting capabilities negotiation with 'qmp_capabilities'",
            )),
            (true, "qmp_capabilities") => {
                let why = "Capabilities negotiation is already complete, command ignored";
                Err(Fault::no_command(why))
            }
            (true, name) => commands::execute(name, arguments, machine),
        }
    }

    /// An event for the client, or nothing before it has negotiated capabilities.
    pub fn event(&self, event: &Event) -> Vec<u8> {
        if !self.is_ready {
            return Vec::new();
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let timestamp = json!({"seconds": now.as_secs(), "microseconds": now.subsec_micros()});
        let (name, data) = event.parts();
        let mut value = json!({"timestamp": timestamp, "event": name});
        if !data.is_null() {
            value["data"] = data;
        }
        self.written(&value)
    }

    fn written(&self, value: &Value) -> Vec<u8> {
        let text = match self.is_pretty {
            true => format!("{value:#}"),
            false => value.to_string(),
        };
        format!("{text}\r\n").into_bytes()
    }
}
