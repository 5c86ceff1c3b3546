//! `--net`: parses the description of a network, in QEMU's words.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tollgate_machine::comma_list;
use tollgate_machine::config::{
    AdapterModel, HostForward, NetworkKind, NetworkOptions, RefusalLines, Rule, Rules, Transport,
    UserOptions,
};
use tollgate_machine::device_list::BackEndError;
use tollgate_machine::vm::BuildError;

/// The form of a network, for messages.
const FORM: &str = "user[,allow=HOST[:PORT]][,deny=HOST[:PORT]][,log=refused|none]\
    [,hostfwd=tcp|udp:[ADDR]:PORT-[GUEST]:PORT][,restrict=on|off], passt, \
    socket=PATH, tap=NAME, fd=N or none, and [,mac=XX:XX:XX:XX:XX:XX][,model=virtio|e1000]";
const FORWARD: &str = "tcp|udp:[ADDR]:PORT-[GUEST]:PORT, such as tcp:127.0.0.1:2222-:22";

/// The network that `--net` requests, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network(pub Option<NetworkOptions>);

/// Parses a network: its kind, then keys and values between commas. A doubled comma is one that
/// belongs to a value.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<Network, String> {
    let parts = comma_list::split(text);
    let mut parts = parts.iter().map(AsRef::as_ref);
    let kind: &str = parts.next().unwrap_or_default();
    let mut options = match kind.split_once('=') {
        None if kind == "none" => {
            return match parts.next() {
                None => Ok(Network(None)),
                Some(more) => Err(format!("'{more}' after none: there is nothing to set")),
            };
        }
        None if kind == "user" => NetworkOptions::new(NetworkKind::User(UserOptions::default())),
        None if kind == "passt" => NetworkOptions::new(NetworkKind::Passt),
        Some(("socket", path)) if !path.is_empty() => {
            NetworkOptions::new(NetworkKind::Socket(path.into()))
        }
        Some(("tap", name)) if !name.is_empty() => {
            NetworkOptions::new(NetworkKind::Tap(name.into()))
        }
        Some(("fd", number)) => {
            let number = number.parse().ok().filter(|number: &i32| *number >= 0);
            let number = number.ok_or_else(|| format!("{kind}: a descriptor is a number"))?;
            NetworkOptions::new(NetworkKind::Descriptor(number))
        }
        _ => return Err(format!("no such network; expected {FORM}")),
    };
    let mut seen: Vec<&str> = Vec::new();
    for part in parts {
        let (key, value) = match part.split_once('=') {
            Some(parts) => parts,
            // A list goes on: allow=HOST,HOST
            None => match seen.last().filter(|key| is_list(key)) {
                Some(key) => (*key, part),
                None => return Err(format!("'{part}' has no value; expected {FORM}")),
            },
        };
        if key != "hostfwd" && !is_list(key) && seen.contains(&key) {
            return Err(format!("'{key}' is given twice"));
        }
        seen.push(key);
        set(&mut options, key, value)?;
    }
    if let NetworkKind::User(user) = &options.kind {
        if user.restrict && user.rules != Rules::default() {
            return Err("restrict=on closes everything; leave it or allow= and deny= out".into());
        }
        user.rules.validate()?;
    }
    Ok(Network(Some(options)))
}

/// Whether a key has a list of values.
fn is_list(key: &str) -> bool {
    matches!(key, "allow" | "deny")
}

/// Whether a word begins as a network does, for flags whose value may be left out.
pub fn is_network(word: &str) -> bool {
    let kind = word.split(',').next().unwrap_or_default();
    matches!(kind, "user" | "passt" | "none")
        || ["socket=", "tap=", "fd="]
            .iter()
            .any(|it| kind.starts_with(it))
}

/// The flag that the failure of a network or of sockets is about, to precede the error; empty for
/// other failures.
pub fn flag_of(error: &BuildError) -> &'static str {
    match error {
        // The error's own text begins with the name of the flag.
        BuildError::BackEnd(BackEndError::Network(error)) if error.what.starts_with("vsock") => {
            "--"
        }
        BuildError::BackEnd(BackEndError::Network(_)) => "--net: ",
        _ => "",
    }
}

fn set(options: &mut NetworkOptions, key: &str, value: &str) -> Result<(), String> {
    match (key, &mut options.kind) {
        ("mac", _) => options.mac = Some(value.parse()?),
        ("model", _) => {
            options.model = match value {
                "virtio" => AdapterModel::Virtio,
                "e1000" => AdapterModel::E1000,
                _ => return Err(format!("model={value}: expected virtio or e1000")),
            };
        }
        ("hostfwd", NetworkKind::User(user)) => user.forwards.push(forward(value)?),
        ("restrict", NetworkKind::User(user)) => {
            user.restrict = match value {
                "on" | "yes" | "y" => true,
                "off" | "no" | "n" => false,
                _ => return Err(format!("restrict={value}: expected on or off")),
            };
        }
        ("allow", NetworkKind::User(user)) => user.rules.allow.push(rule(key, value)?),
        ("deny", NetworkKind::User(user)) => user.rules.deny.push(rule(key, value)?),
        ("log", NetworkKind::User(user)) => {
            user.refusal_lines = match value {
                "refused" => RefusalLines::Shown,
                "none" => RefusalLines::Hidden,
                _ => return Err(format!("log={value}: expected refused or none")),
            };
        }
        ("hostfwd" | "restrict" | "allow" | "deny" | "log", _) => {
            return Err(format!("'{key}' is for user networks only"));
        }
        _ => return Err(format!("unknown key '{key}'; expected {FORM}")),
    }
    Ok(())
}

fn rule(key: &str, value: &str) -> Result<Rule, String> {
    value.parse().map_err(|error| format!("{key}={error}"))
}

/// A forwarded port, as in QEMU: `tcp|udp:[ADDR]:PORT-[GUEST]:PORT`, with IPv6 addresses in
/// brackets.
fn forward(text: &str) -> Result<HostForward, String> {
    let wrong = |why: &str| format!("hostfwd={text}: {why}; expected {FORWARD}");
    let (protocol, rest) = text.split_once(':').ok_or_else(|| wrong("no protocol"))?;
    let transport = match protocol {
        "tcp" | "" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return Err(wrong("unknown protocol")),
    };
    let (host, guest) = rest.split_once('-').ok_or_else(|| wrong("no '-'"))?;
    let ends = |text: &str| -> Result<(Option<IpAddr>, u16), String> {
        let (address, port) = text.rsplit_once(':').ok_or_else(|| wrong("no port"))?;
        let port = port.parse().map_err(|_| wrong("a port is 1 to 65535"))?;
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let address = match address {
            "" => None,
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            address => Some(address.parse().map_err(|_| wrong("a wrong address"))?),
        };
        Ok((address, port))
    };
    let (host, host_port) = ends(host)?;
    let (guest, guest_port) = ends(guest)?;
    let guest_address = match guest {
        None => None,
        Some(IpAddr::V4(address)) => Some(address),
        Some(IpAddr::V6(_)) => return Err(wrong("the guest's address is one of IPv4")),
    };
    if guest_port == 0 {
        return Err(wrong("a port is 1 to 65535"));
    }
    Ok(HostForward {
        transport,
        host: SocketAddr::new(host.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), host_port),
        guest_address,
        guest_port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> UserOptions {
        match parse(text).unwrap().0.unwrap().kind {
            NetworkKind::User(user) => user,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_network_is_written_as_for_qemu() {
        assert_eq!(parse("none"), Ok(Network(None)));
        assert_eq!(user("user"), UserOptions::default());
        let options = user(
            "user,hostfwd=tcp:127.0.0.1:2222-:22,hostfwd=tcp::8080-10.0.2.99:80,\
             hostfwd=tcp:[::1]:8081-:80,restrict=on",
        );
        assert!(options.restrict);
        let dns = user("user,hostfwd=udp:127.0.0.1:5353-:53");
        assert_eq!(dns.forwards[0].transport, Transport::Udp);
        assert_eq!(options.forwards[0].transport, Transport::Tcp);
        let forwards = options.forwards.iter().map(|forward| {
            let guest = forward.guest_address.map(|address| address.to_string());
            (forward.host.to_string(), guest, forward.guest_port)
        });
        let expected = [
            ("127.0.0.1:2222".to_owned(), None, 22),
            ("0.0.0.0:8080".to_owned(), Some("10.0.2.99".to_owned()), 80),
            ("[::1]:8081".to_owned(), None, 80),
        ];
        assert_eq!(forwards.collect::<Vec<_>>(), expected);
        let ruled = user("user,allow=example.org:443,10.0.0.0/8,deny=10.1.0.0/16,log=refused");
        let texts = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&ruled.rules.allow), ["example.org:443", "10.0.0.0/8"]);
        assert_eq!(texts(&ruled.rules.deny), ["10.1.0.0/16"]);
        assert_eq!(ruled.refusal_lines, RefusalLines::Shown);
        let socket = parse("socket=a,,b,mac=52:54:00:00:00:01")
            .unwrap()
            .0
            .unwrap();
        assert_eq!(socket.kind, NetworkKind::Socket("a,b".into()));
        let passt = parse("passt").unwrap().0.unwrap();
        assert_eq!(passt.kind, NetworkKind::Passt);
        let tap = parse("tap=tap0,mac=52:54:00:00:00:01").unwrap().0.unwrap();
        assert_eq!(tap.kind, NetworkKind::Tap("tap0".into()));
        let descriptor = parse("fd=3").unwrap().0.unwrap();
        assert_eq!(descriptor.kind, NetworkKind::Descriptor(3));
        assert_eq!(socket.mac, Some("52:54:00:00:00:01".parse().unwrap()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "no such network"),
            ("bridge", "no such network"),
            ("socket=", "no such network"),
            ("tap=", "no such network"),
            ("fd=x", "a descriptor is a number"),
            ("fd=-1", "a descriptor is a number"),
            ("tap=tap0,restrict=on", "for user networks only"),
            ("none,mac=52:54:00:00:00:01", "nothing to set"),
            ("user,restrict", "has no value"),
            ("user,restrict=maybe", "expected on or off"),
            ("user,restrict=on,restrict=on", "given twice"),
            ("user,mac=1:2", "not a MAC address"),
            ("user,mac=53:54:00:00:00:01", "address of a group"),
            ("user,hostfwd=2222", "no protocol"),
            ("user,hostfwd=sctp::1-:1", "unknown protocol"),
            ("user,hostfwd=tcp::2222", "no '-'"),
            ("user,hostfwd=tcp:2222-:22", "no port"),
            ("user,hostfwd=tcp::99999-:22", "a port is"),
            ("user,hostfwd=tcp::22-:0", "a port is"),
            ("user,hostfwd=tcp:example.org:22-:22", "a wrong address"),
            ("user,hostfwd=tcp::22-[::1]:22", "one of IPv4"),
            ("socket=a,restrict=on", "for user networks only"),
            ("passt,allow=any", "for user networks only"),
            ("user,allow=", "names no destination"),
            ("user,allow=10.0.0.1/8", "did you mean 10.0.0.0/8"),
            ("user,deny=*.example.org", "only together"),
            ("user,restrict=on,allow=any", "closes everything"),
            ("user,log=all", "expected refused or none"),
            ("user,log=none,example.org", "has no value"),
            ("passt,hostfwd=tcp::1-:1", "for user networks only"),
            ("user,ipv6=off", "unknown key 'ipv6'"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }
}
