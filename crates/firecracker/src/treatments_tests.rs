//! Compares the list of requests with the parsers, and with the reference.

use crate::treatments::*;
use crate::{HttpRequest, Method, route};

/// The fields that the parser of a request's body knows.
fn known(method: Method, path: &str) -> Vec<String> {
    let request = HttpRequest {
        method: Some(method),
        method_name: method.name().into(),
        path: path.into(),
        headers: Vec::new(),
        body: br#"{"?": 0}"#.into(),
        keeps_alive: true,
    };
    let refusal = route(&request).unwrap_err().message;
    let (_, expected) = refusal.split_once("expected ").unwrap();
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn the_list_has_the_fields_that_the_parsers_know() {
    for endpoint in TREATMENTS.iter().filter(|it| !it.fields.is_empty()) {
        let (method, path) = endpoint.request.split_once(' ').unwrap();
        let methods = [Method::Put, Method::Patch];
        let method = methods.into_iter().find(|it| it.name() == method).unwrap();
        let mut fields: Vec<&str> = endpoint.fields.iter().map(|it| it.0).collect();
        let mut known = known(method, path);
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known, "{}", endpoint.request);
    }
}

#[test]
fn what_is_refused_as_a_whole_is_refused_by_the_parser() {
    for endpoint in TREATMENTS
        .iter()
        .filter(|it| it.treatment == Treatment::Refused)
    {
        let path = endpoint.request.split_whitespace();
        let path = path.clone().find(|it| it.starts_with('/')).unwrap();
        let request = HttpRequest {
            method: Some(Method::Put),
            method_name: "PUT".into(),
            path: path.trim_end_matches(',').into(),
            headers: Vec::new(),
            body: b"{}".into(),
            keeps_alive: true,
        };
        assert!(route(&request).is_err(), "{path}");
    }
}

#[test]
fn the_reference_is_what_the_list_says() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/firecracker.md"
    );
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(written, reference(), "write it with TOLLGATE_BLESS=1");
}
