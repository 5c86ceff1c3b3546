//! No guest may make the controller panic, stop answering or write where it must not.

use super::rig::Rig;
use tollgate_test_support::Random;

/// Returns a port that the controller uses.
fn port(random: &mut Random) -> u16 {
    match random.below(12) {
        0 => 0x3f2,
        1 => 0x3f7,
        2 => 0x3f4,
        3 => 0x0a,
        4 => 0x08,
        5 => 0x81,
        6 => random.below(16) as u16,
        7 => 0x3f0 + random.below(8) as u16,
        _ => 0x3f5,
    }
}

/// Returns a value that often has a meaning at this port.
fn value(port: u16, random: &mut Random) -> u8 {
    const COMMANDS: [u8; 16] = [
        0xe6, 0xc5, 0x4a, 0x0f, 0x07, 0x08, 0x4d, 0x42, 0xcc, 0x56, 0x13, 0x03, 0x0e, 0x94, 0x8f,
        0xcf,
    ];
    let any = random.next_u64() as u8;
    match (port, random.below(4)) {
        (0x3f2, 1..) => any | 0x1c,
        (0x3f4, _) => any & 3,
        (0x3f5, 0) => COMMANDS[random.below(COMMANDS.len())],
        (0x3f5, 1) => any & 0x1f,
        (0x0a, 1..) => 2,
        (0x08, _) => 0,
        _ => any,
    }
}

#[test]
fn random_accesses_are_survived_and_deadlines_lie_ahead() {
    let mut random = Random::new(0x8207_7aa0);
    let mut rig = Rig::new(&[Some(360), None]);
    for step in 0..60_000 {
        let port = port(&mut random);
        if random.below(3) == 0 {
            rig.read(port);
        } else {
            let value = value(port, &mut random);
            rig.write(port, value);
        }
        if step % 7 == 0 {
            let exponent = random.below(30);
            rig.pass(random.below(1 << exponent) as u64 + 1);
        }
        if step % 5000 == 0 {
            let saved = rig.save();
            rig.restore(&saved);
        }
    }
    // The controller still answers.
    rig.write(0x3f2, 0);
    rig.write(0x3f2, 0x1c);
    assert_eq!(rig.read(0x3f4), 0x80);
    assert_eq!(rig.command(&[0x10]), [0x90]);
    assert_eq!(rig.image(0).len(), 360 * 1024);
}
