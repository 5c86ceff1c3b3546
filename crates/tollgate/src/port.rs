//! `--port` and `--hvc`: parses streams of bytes between guest and host, and consoles on such
//! streams.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use tollgate_machine::config::{OnLoss, PortOptions, PortTarget};

use crate::failure::Failure;
use crate::lost_output::LostOutput;
use crate::serial_target::SerialTarget;

/// Parses `NAME=WHERE`.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &OsStr) -> Result<PortOptions, String> {
    const FORM: &str = "NAME=stdio|stdin|stdout|stderr|file:PATH|socket:PATH|fd:N";
    let bytes = text.as_bytes();
    let Some(middle) = bytes.iter().position(|byte| *byte == b'=') else {
        return Err(format!("expected {FORM}"));
    };
    let (name, target) = (&bytes[..middle], &bytes[middle + 1..]);
    let name = String::from_utf8_lossy(name).into_owned();
    if !PortOptions::is_name(&name) {
        return Err(format!(
            "'{name}' is no name: 1 to 64 letters, digits, '.', '_' or '-'"
        ));
    }
    let target = where_to(target).ok_or_else(|| format!("expected {FORM}"))?;
    Ok(PortOptions {
        name,
        target,
        is_console: false,
        on_loss: OnLoss::default(),
    })
}

/// Parses WHERE of a console.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse_console(text: &OsStr) -> Result<PortTarget, String> {
    let target = where_to(text.as_bytes());
    target.ok_or_else(|| "expected stdio|stdin|stdout|stderr|file:PATH|socket:PATH|fd:N".into())
}

fn where_to(target: &[u8]) -> Option<PortTarget> {
    let path = |prefix: &[u8]| {
        let path = target.strip_prefix(prefix)?;
        (!path.is_empty()).then(|| OsString::from_vec(path.to_vec()).into())
    };
    match target {
        b"stdio" => Some(PortTarget::Stdio),
        b"stdin" => Some(PortTarget::Stdin),
        b"stdout" => Some(PortTarget::Stdout),
        b"stderr" => Some(PortTarget::Stderr),
        _ => path(b"file:")
            .map(PortTarget::File)
            .or_else(|| path(b"socket:").map(PortTarget::Socket))
            .or_else(|| descriptor(target)),
    }
}

/// Parses `fd:N`: the descriptor N that the parent process has left open.
fn descriptor(target: &[u8]) -> Option<PortTarget> {
    let number = std::str::from_utf8(target.strip_prefix(b"fd:")?).ok()?;
    let number = number.parse().ok().filter(|number: &i32| *number >= 0)?;
    Some(PortTarget::Descriptor(number))
}

/// The ports followed by the consoles, after a check that at most one of them reads standard input.
///
/// # Errors
///
/// Two of them read standard input.
pub fn checked(
    ports: &[PortOptions],
    consoles: &[PortTarget],
    serial: &SerialTarget,
) -> Result<Vec<PortOptions>, Failure> {
    let consoles = consoles.iter().enumerate();
    let consoles = consoles.map(|(number, target)| PortOptions {
        name: format!("hvc{number}"),
        target: target.clone(),
        is_console: true,
        on_loss: OnLoss::default(),
    });
    let ports: Vec<_> = ports.iter().cloned().chain(consoles).collect();
    let readers = ports.iter();
    let readers =
        readers.filter(|port| matches!(port.target, PortTarget::Stdio | PortTarget::Stdin));
    let count = readers.count() + usize::from(*serial == SerialTarget::Stdio);
    if !ports.is_empty() && count > 1 {
        return Err(Failure::usage(
            "--port, --hvc: standard input has one reader at most; send the serial port elsewhere, \
             as by --serial null"
                .to_owned(),
        ));
    }
    Ok(ports)
}

/// Lets these ports report lost output; returns the notes that say at the end whether any was lost.
pub fn watch(ports: &mut [PortOptions]) -> Vec<Arc<LostOutput>> {
    let watched = ports.iter_mut().map(|port| {
        let flag = match port.is_console {
            true => "--hvc".to_owned(),
            false => format!("--port {}", port.name),
        };
        let target = match &port.target {
            PortTarget::File(path) | PortTarget::Socket(path) => format!("'{}'", path.display()),
            PortTarget::Stdio | PortTarget::Stdin | PortTarget::Stdout => "standard output".into(),
            PortTarget::Stderr => "standard error".into(),
            PortTarget::Descriptor(number) => format!("descriptor {number}"),
        };
        let lost = LostOutput::new(flag, target);
        let noted = Arc::clone(&lost);
        port.on_loss = OnLoss::call(move |error| noted.note(error));
        lost
    });
    watched.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, target: PortTarget) -> PortOptions {
        PortOptions {
            name: name.into(),
            target,
            is_console: false,
            on_loss: OnLoss::default(),
        }
    }

    #[test]
    fn a_port_is_a_name_and_a_stream() {
        let parse = |text: &str| parse(OsStr::new(text));
        assert_eq!(parse("a=stdin"), Ok(port("a", PortTarget::Stdin)));
        let file = PortTarget::File("x=y".into());
        assert_eq!(parse("org.a-1=file:x=y"), Ok(port("org.a-1", file)));
        let socket = PortTarget::Socket("/s".into());
        assert_eq!(parse("b=socket:/s"), Ok(port("b", socket)));
        assert_eq!(parse("c=fd:7"), Ok(port("c", PortTarget::Descriptor(7))));
        for bad in [
            "",
            "a",
            "a=",
            "=stdio",
            "a b=stdio",
            "a=file:",
            "a=tcp:1",
            "a=fd:",
            "a=fd:-1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn standard_input_has_one_reader() {
        let ports = [port("a", PortTarget::Stdin), port("b", PortTarget::Stdout)];
        let null = SerialTarget::Null;
        assert!(checked(&ports, &[], &null).is_ok());
        assert!(checked(&ports, &[], &SerialTarget::Stdio).is_err());
        assert!(checked(&ports[1..], &[], &SerialTarget::Stdio).is_ok());
        let console = parse_console(OsStr::new("stdio")).unwrap();
        assert!(checked(&ports, std::slice::from_ref(&console), &null).is_err());
        let both = checked(&ports[1..], &[console], &null).unwrap();
        assert_eq!((both[1].name.as_str(), both[1].is_console), ("hvc0", true));
        assert!(parse_console(OsStr::new("pty")).is_err());
        let twice = [ports[0].clone(), port("c", PortTarget::Stdio)];
        assert!(checked(&twice, &[], &null).is_err());
    }
}
