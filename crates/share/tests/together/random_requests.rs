//! Tests with random requests: the server neither panics nor leaves the directory, and its answers
//! have a valid form. Requests range from noise to nearly valid ones.

use crate::client::{Client, Folder, u32_at, u64_at, words};
use tollgate_share::Server;
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_test_support::Random;

const NAMES: [&str; 12] = [
    "a",
    "b",
    "c",
    "d",
    "link",
    "up",
    "..",
    ".",
    "",
    "a/b",
    "../outside/secret",
    "/etc",
];

fn names(random: &mut Random, body: &mut Vec<u8>) {
    for _ in 0..2 {
        let name = random.pick(&NAMES);
        body.extend(name.bytes());
        if random.below(32) != 0 {
            body.push(0);
        }
    }
}

/// Returns a number that is often valid: mostly one that the server has assigned.
fn number(random: &mut Random, known: &[u64]) -> u64 {
    match random.below(12) {
        0 => u64::MAX - random.below(4) as u64,
        1 => 1 << random.below(64),
        2 => random.next_u64(),
        3..6 => random.below(6) as u64,
        _ => random.pick(known),
    }
}

fn body(random: &mut Random, known: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..random.below(12) {
        let value = number(random, known);
        match random.below(2) {
            0 => body.extend(value.to_le_bytes()),
            _ => body.extend((value as u32).to_le_bytes()),
        }
    }
    if random.below(3) != 0 {
        names(random, &mut body);
    }
    body
}

#[test]
fn any_request_is_answered_or_refused_and_nothing_outside_changes() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let folder = Folder::new();
        folder.write("a", b"content");
        std::fs::create_dir(folder.shared("d")).unwrap();
        std::os::unix::fs::symlink("../outside", folder.shared("up")).unwrap();
        let options = folder.options();
        let client = Client::new(Server::with_limit(&options, 400).unwrap());
        // Numbers in replies: nodes, handles and others.
        let mut known = vec![ROOT; 8];
        let mut successes = 0;
        for _ in 0..4000 {
            let kind = match random.below(16) {
                0 => random.next_u64() as u32,
                1 => opcode::LOOKUP,
                _ => random.below(54) as u32,
            };
            // These requests may fill the host's disk or take long.
            if matches!(kind, opcode::FALLOCATE | opcode::SYNCFS | opcode::FSYNC) {
                continue;
            }
            let body = body(&mut random, &known);
            let mut request = client.request(kind, number(&mut random, &known), &[&body]);
            if random.below(16) == 0 {
                let bytes = random.below(request.len() + 1);
                request.truncate(bytes);
            }
            if random.below(16) == 0 && request.len() >= 4 {
                request[..4].copy_from_slice(&words(&[number(&mut random, &known) as u32]));
            }
            let capacity = match random.below(8) {
                0 => random.below(200),
                _ => 8192,
            };
            let reply = match random.below(2) {
                0 => client.server.handle_at_once(&request, capacity),
                _ => None,
            };
            let reply = reply.unwrap_or_else(|| client.server.handle(&request, capacity));
            assert!(reply.len() <= capacity);
            if !reply.is_empty() {
                assert_eq!(u32_at(&reply, 0) as usize, reply.len());
                let error = u32_at(&reply, 4) as i32;
                assert!((-4095..=0).contains(&error), "{error}");
                assert!(error == 0 || reply.len() == 16);
                successes += u32::from(error == 0);
                for place in [16, 144] {
                    if error == 0 && reply.len() >= place + 8 {
                        known.remove(0);
                        known.push(u64_at(&reply, place));
                    }
                }
            }
        }
        assert!(successes > 200, "{successes}");
        let outside = folder.0.join("outside");
        assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    }
}
