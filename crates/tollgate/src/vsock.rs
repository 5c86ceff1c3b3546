//! `--vsock`: parses the options of sockets between guest and host, in Firecracker's words.

use tollgate_machine::comma_list;
use tollgate_machine::config::VsockOptions;

/// Parses `cid=N,path=SOCKET`. A doubled comma is one of the path.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<VsockOptions, String> {
    const FORM: &str = "cid=N,path=SOCKET, where N is 3 to 4294967294";
    let (mut cid, mut path) = (None, None);
    for part in comma_list::split(text) {
        match part.split_once('=') {
            Some(("cid", number)) => {
                let number = number.parse().ok();
                let number = number.filter(|number| VsockOptions::is_cid(*number));
                let number = number.ok_or_else(|| format!("a wrong cid; expected {FORM}"))?;
                if cid.replace(number).is_some() {
                    return Err("'cid' is given twice".into());
                }
            }
            Some(("path", socket)) if !socket.is_empty() => {
                if path.replace(socket.into()).is_some() {
                    return Err("'path' is given twice".into());
                }
            }
            _ => return Err(format!("unknown part '{part}'; expected {FORM}")),
        }
    }
    match (cid, path) {
        (Some(cid), Some(path)) => Ok(VsockOptions { cid, path }),
        _ => Err(format!("expected {FORM}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_device_is_a_number_and_a_path() {
        let options = |cid, path: &str| VsockOptions {
            cid,
            path: path.into(),
        };
        assert_eq!(parse("cid=3,path=/v.sock"), Ok(options(3, "/v.sock")));
        assert_eq!(
            parse("path=a,,b,cid=4294967294"),
            Ok(options(0xffff_fffe, "a,b"))
        );
        for (text, why) in [
            ("", "expected cid=N,path=SOCKET"),
            ("cid=3", "expected cid=N,path=SOCKET"),
            ("cid=2,path=a", "a wrong cid"),
            ("cid=4294967295,path=a", "a wrong cid"),
            ("cid=x,path=a", "a wrong cid"),
            ("cid=3,cid=4,path=a", "given twice"),
            ("cid=3,path=a,path=b", "given twice"),
            ("cid=3,path=", "expected"),
            ("cid=3,path=a,port=1", "expected"),
        ] {
            let refusal = parse(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }
}
