//! Tests of the words of rules, with many generated ones.

use super::*;
use tollgate_test_support::Random;

fn rule(text: &str) -> Rule {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_rule_is_written_in_one_way() {
    for (text, written) in [
        ("any", "any"),
        ("*", "any"),
        ("any:443", "any:443"),
        ("host", "host"),
        ("localhost:8080", "host:8080"),
        ("127.0.0.1:8080", "host:8080"),
        ("10.0.2.2", "host"),
        ("[fec0::2]:80", "host:80"),
        ("::1", "host"),
        ("dns", "dns"),
        ("10.0.2.3:53", "dns:53"),
        ("Example.ORG.", "example.org"),
        ("example.org:443", "example.org:443"),
        ("*.example.org", "*.example.org"),
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1/32:25", "192.0.2.1:25"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:22", "10.0.0.0/8:22"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[::ffff:169.254.169.254]:80", "169.254.169.254:80"),
    ] {
        assert_eq!(rule(text).to_string(), written, "{text}");
        assert_eq!(rule(written), rule(text), "{text}");
    }
}

#[test]
fn what_is_wrong_with_a_rule_is_said() {
    for (text, why) in [
        ("", "names no destination"),
        (":80", "names no destination"),
        ("host:", "a port is"),
        ("host:0", "a port is"),
        ("host:+80", "a port is"),
        ("host:http", "a port is"),
        ("host:65536", "a port is"),
        ("dns:54", "no port but 53"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8"),
        ("10.0.0.0/33", "no address"),
        ("1.2.3", "no address"),
        ("1.2.3.4.5", "no address"),
        ("example.org/24", "no address"),
        ("[2001:db8::1", "has no ']'"),
        ("[2001:db8::1]80", "a port is"),
        ("[example.org]:80", "only IPv6"),
        ("2001:db8::g", "no address"),
        ("127.0.0.0/8", "named host"),
        ("127.0.0.53", "named host"),
        ("b\u{fc}cher.example", "xn--"),
        ("a..b", "no name of a host"),
        ("*", ""),
        ("a.*.b", "no name of a host"),
        ("*.", "no name of a host"),
        ("http://example.org", "a port is"),
        ("user@example.org", "no name of a host"),
    ] {
        match text.parse::<Rule>() {
            Ok(rule) => assert!(why.is_empty(), "{text}: {rule}"),
            Err(error) => assert!(!why.is_empty() && error.contains(why), "{text}: {error}"),
        }
    }
}

#[test]
fn a_pattern_matches_whole_parts_of_names() {
    let matches = |pattern: &str, name: &str| {
        let pattern: NamePattern = pattern.parse().unwrap();
        pattern.matches(&name.parse().unwrap())
    };
    assert!(matches("example.org", "EXAMPLE.org."));
    assert!(!matches("example.org", "www.example.org"));
    assert!(matches("*.example.org", "www.example.org"));
    assert!(matches("*.example.org", "a.b.example.org"));
    assert!(!matches("*.example.org", "example.org"));
    assert!(!matches("*.example.org", "badexample.org"));
    assert!(!matches("*.example.org", "www.example.org.evil.net"));
}

#[test]
fn labels_with_dots_or_other_bytes_make_no_name() {
    let name = |labels: &[&[u8]]| HostName::of_labels(labels.iter().copied());
    assert_eq!(name(&[b"A", b"b"]), Some("a.b".parse().unwrap()));
    for labels in [
        &[&b"a.b"[..], b"c"][..],
        &[b""],
        &[b"\xff"],
        &[b"a b"],
        &[b"a\0"],
        &[b"*", b"c"],
        &[],
    ] {
        assert_eq!(name(labels), None, "{labels:?}");
    }
}

fn random_rule(random: &mut Random) -> Rule {
    let target = match random.below(6) {
        0 => Target::Any,
        1 => Target::Host,
        2 => {
            let bits = random.below(33) as u8;
            let address = Ipv4Addr::from([203, random.byte(), random.byte(), random.byte()]);
            Target::Block(IpNet::new(address.into(), bits).unwrap().trunc())
        }
        3 => {
            let bits = random.below(129) as u8;
            let mut address = [0x20; 16];
            address
                .iter_mut()
                .for_each(|byte| *byte = random.byte() | 0x20);
            let address = Ipv6Addr::from(address);
            Target::Block(IpNet::new(address.into(), bits).unwrap().trunc())
        }
        kind => {
            let label = |random: &mut Random| -> String {
                let length = 1 + random.below(10);
                (0..length)
                    .map(|_| b"abcxyz-_7"[random.below(8)] as char)
                    .collect()
            };
            let name = format!("{}.{}.example", label(random), label(random))
                .parse()
                .unwrap();
            Target::Name(match kind {
                4 => NamePattern::Exactly(name),
                _ => NamePattern::Below(name),
            })
        }
    };
    let port = NonZeroU16::new(random.below(65_536) as u16).filter(|_| random.one_in(2));
    Rule { target, port }
}

#[test]
fn every_rule_is_read_as_it_is_written() {
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let rule = random_rule(&mut random);
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
}

#[test]
fn no_text_makes_the_parser_fail_otherwise_than_by_an_error() {
    let mut random = Random::new(8);
    let alphabet = b"[]:/.*-0123456789abcdefghost \xc3\xbc";
    for _ in 0..50_000 {
        let length = random.below(24);
        let bytes: Vec<u8> = (0..length)
            .map(|_| alphabet[random.below(alphabet.len())])
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(rule) = text.parse::<Rule>() {
            assert_eq!(rule.to_string().parse(), Ok(rule), "{text}");
        }
    }
}

#[test]
fn rules_that_cannot_work_are_refused() {
    let rules = |allow: &[&str], deny: &[&str]| Rules {
        allow: allow.iter().map(|text| rule(text)).collect(),
        deny: deny.iter().map(|text| rule(text)).collect(),
    };
    assert_eq!(
        rules(&["any"], &["10.0.0.0/8:22", "example.org"]).validate(),
        Ok(())
    );
    assert_eq!(rules(&["*.a.org"], &["*.b.a.org"]).validate(), Ok(()));
    assert!(rules(&[], &["example.org:80"]).validate().is_err());
    assert!(rules(&[], &["*.example.org"]).validate().is_err());
    assert!(rules(&["any"], &["*.example.org"]).validate().is_err());
}
