//! Tests of sessions, with a viewer that reads their output.

use crate::viewer::Viewer;
use crate::{Event, Frame, Password, Refusal, Session};
use std::sync::Arc;
use tollgate_test_support::Random;

const CHALLENGE: [u8; 16] = *b"0123456789abcdef";
const SIZE: (u16, u16) = (200, 100);

fn password() -> Option<Password> {
    Password::new(b"secret")
}

fn session(password: Option<Password>) -> Session {
    let mut session = Session::new(password, CHALLENGE, SIZE, "a screen");
    assert_eq!(Viewer::take(&mut session), b"RFB 003.008\n");
    session
}

/// Sends bytes and returns the answer.
fn say(session: &mut Session, bytes: &[u8]) -> Vec<u8> {
    assert_eq!(session.receive(bytes, &mut Vec::new()), Ok(()));
    Viewer::take(session)
}

fn events(session: &mut Session, bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    session.receive(bytes, &mut events).unwrap();
    events
}

/// Makes a session with a viewer that was admitted without a password.
fn let_in(encodings: &[i32]) -> (Session, Viewer) {
    let mut session = session(None);
    say(&mut session, b"RFB 003.008\n\x01\x01");
    let list = encodings.iter().flat_map(|number| number.to_be_bytes());
    let list: Vec<u8> = list.collect();
    say(&mut session, &[2, 0, 0, encodings.len() as u8]);
    say(&mut session, &list);
    let mut viewer = Viewer::new();
    viewer.resize(SIZE.0.into(), SIZE.1.into());
    (session, viewer)
}

const INCREMENTAL: [u8; 10] = [3, 1, 0, 0, 0, 0, 0, 200, 0, 100];
const WHOLE: [u8; 10] = [3, 0, 0, 0, 0, 0, 0, 200, 0, 100];

/// Makes a picture with parts of few colours and parts of many.
fn picture(random: &mut Random, (width, height): (u16, u16)) -> Arc<Frame> {
    let (wide, high) = (usize::from(width), usize::from(height));
    let mut pixels = vec![[0; 3]; wide * high];
    for _ in 0..=random.below(8) {
        let colours: Vec<[u8; 3]> = (0..=random.below(20))
            .map(|_| [random.byte(), random.byte(), 255])
            .collect();
        let (x, y) = (random.below(wide), random.below(high));
        for line in y..high {
            for column in x..wide {
                let colour = random.below(colours.len());
                pixels[line * wide + column] = colours[colour];
            }
        }
    }
    let pixels = pixels.as_flattened().to_vec();
    Arc::new(Frame::new(width, height, pixels).unwrap())
}

fn pixels(frame: &Frame) -> Vec<[u8; 3]> {
    frame.pixels(frame.whole()).collect()
}

#[test]
fn each_version_lets_in_with_its_own_handshake() {
    let introduction = |bytes: &[u8]| {
        assert_eq!(&bytes[..4], [0, 200, 0, 100]);
        assert_eq!(&bytes[20..], b"\0\0\0\x08a screen");
    };
    let mut eight = session(None);
    assert_eq!(say(&mut eight, b"RFB 003.008\n"), [1, 1]);
    assert_eq!(say(&mut eight, &[1]), [0, 0, 0, 0]);
    assert!(eight.is_let_in());
    introduction(&say(&mut eight, &[1]));
    let mut seven = session(None);
    assert_eq!(say(&mut seven, b"RFB 003.007\n"), [1, 1]);
    assert_eq!(say(&mut seven, &[1]), []);
    introduction(&say(&mut seven, &[1]));
    for greeting in [b"RFB 003.003\n", b"RFB 003.005\n"] {
        let mut three = session(None);
        assert_eq!(say(&mut three, greeting), [0, 0, 0, 1]);
        introduction(&say(&mut three, &[1]));
    }
}

#[test]
fn the_right_password_lets_in_and_a_wrong_one_does_not() {
    let answer = password().unwrap().answer(CHALLENGE);
    for (greeting, offer) in [
        (b"RFB 003.003\n", 4),
        (b"RFB 003.007\n", 2),
        (b"RFB 003.008\n", 2),
    ] {
        let begin = || {
            let mut session = session(password());
            let mut offered = say(&mut session, greeting);
            if offer == 2 {
                assert_eq!(offered, [1, 2]);
                offered = [vec![0, 0, 0, 2], say(&mut session, &[2])].concat();
            }
            assert_eq!(offered, [&[0, 0, 0, 2], &CHALLENGE[..]].concat());
            session
        };
        let mut right = begin();
        assert!(!right.is_let_in());
        assert_eq!(say(&mut right, &answer), [0, 0, 0, 0]);
        assert!(right.is_let_in());
        let mut wrong = begin();
        let mut answer = answer;
        answer[3] ^= 0x40;
        let refused = wrong.receive(&answer, &mut Vec::new());
        assert_eq!(refused, Err(Refusal::Password));
        let said = Viewer::take(&mut wrong);
        assert_eq!(&said[..4], [0, 0, 0, 1]);
        assert_eq!(
            said[4..].ends_with(b"wrong password"),
            greeting.ends_with(b"8\n")
        );
        // The viewer's later messages are ignored.
        assert!(events(&mut wrong, &[1, 4, 1, 0, 0, 0, 0, 0, 65]).is_empty());
        assert!(wrong.output().is_empty() && !wrong.is_let_in());
    }
}

#[test]
fn no_password_cannot_be_chosen_where_there_is_one() {
    let mut session = session(password());
    say(&mut session, b"RFB 003.008\n");
    let refused = session.receive(&[1, 1], &mut Vec::new());
    assert_eq!(refused, Err(Refusal::Security));
}

#[test]
fn other_protocols_are_refused_at_once() {
    for greeting in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"RFB",
        b"RFB 3.8 xxxxx",
        b"RFB +03.008\n",
    ] {
        let refused = session(None).receive(greeting, &mut Vec::new());
        let expected = match greeting {
            b"RFB" => Ok(()),
            _ => Err(Refusal::NoGreeting),
        };
        assert_eq!(refused, expected, "{greeting:?}");
    }
}

#[test]
fn pictures_arrive_as_they_are_in_both_encodings() {
    let mut random = Random::new(1);
    for encodings in [&[0][..], &[16, 0]] {
        let (mut session, mut viewer) = let_in(encodings);
        for _ in 0..20 {
            let frame = picture(&mut random, SIZE);
            say(&mut session, &INCREMENTAL);
            assert!(session.wants_update());
            session.update(&frame);
            viewer.read_updates(&Viewer::take(&mut session));
            assert!(viewer.pixels == pixels(&frame));
            assert!(!session.wants_update());
        }
    }
}

#[test]
fn pixels_come_in_the_format_that_was_asked_for() {
    let mut random = Random::new(2);
    let frame = picture(&mut random, SIZE);
    let format = |bytes: [u8; 16]| [&[0, 0, 0, 0][..], &bytes].concat();
    for encoding in [0, 16] {
        let (mut session, mut viewer) = let_in(&[encoding]);
        // 16 bits, the high byte first: five bits of red, six of green, five of blue.
        let sixteen = [16, 16, 1, 1, 0, 31, 0, 63, 0, 31, 11, 5, 0, 0, 0, 0];
        say(&mut session, &format(sixteen));
        (viewer.pixel_bytes, viewer.short_bytes) = (2, 2);
        viewer.pixel = |bytes| {
            let value = u16::from_be_bytes([bytes[0], bytes[1]]);
            [
                (value >> 11) as u8,
                (value >> 5 & 63) as u8,
                (value & 31) as u8,
            ]
        };
        viewer.short_pixel = viewer.pixel;
        say(&mut session, &WHOLE);
        session.update(&frame);
        viewer.read_updates(&Viewer::take(&mut session));
        for (shown, sent) in viewer.pixels.iter().zip(pixels(&frame)) {
            for (part, most) in [(0, 31), (1, 63), (2, 31)] {
                let exact = f64::from(sent[part]) * f64::from(most) / 255.0;
                let difference = (f64::from(shown[part]) - exact).abs();
                assert!(difference <= 0.51, "{shown:?} for {sent:?}");
            }
        }
        // The colour map is sent before the first pixels.
        let mapped = [8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        say(&mut session, &format(mapped));
        say(&mut session, &WHOLE);
        session.update(&frame);
        let bytes = Viewer::take(&mut session);
        assert_eq!(bytes[..6], [1, 0, 0, 0, 1, 0]);
        assert_eq!(bytes[6 + 6 * 256], 0, "then an update");
    }
}

#[test]
fn only_what_has_changed_is_sent_and_nothing_if_nothing_has() {
    let (mut session, mut viewer) = let_in(&[0]);
    let black = Arc::new(Frame::black(SIZE.0, SIZE.1));
    say(&mut session, &INCREMENTAL);
    session.update(&black);
    viewer.read_updates(&Viewer::take(&mut session));
    say(&mut session, &INCREMENTAL);
    session.update(&black);
    assert!(session.output().is_empty() && session.wants_update());
    let mut bytes = vec![0; 200 * 100 * 3];
    bytes[3 * (20 * 200 + 70)] = 255;
    let dot = Arc::new(Frame::new(SIZE.0, SIZE.1, bytes).unwrap());
    viewer.rectangles.clear();
    session.update(&dot);
    viewer.read_updates(&Viewer::take(&mut session));
    assert_eq!(viewer.rectangles, [([64, 16, 64, 16], 0)]);
    assert!(viewer.pixels == pixels(&dot));
    // A part that was requested unconditionally is sent even if it has not changed.
    viewer.rectangles.clear();
    say(&mut session, &[3, 0, 0, 10, 0, 10, 0, 5, 0, 5]);
    session.update(&dot);
    viewer.read_updates(&Viewer::take(&mut session));
    assert_eq!(viewer.rectangles, [([10, 10, 5, 5], 0)]);
}

#[test]
fn a_new_size_is_told_to_who_understands_it_and_fitted_for_others() {
    let mut random = Random::new(3);
    let small = picture(&mut random, (50, 120));
    let (mut session, mut viewer) = let_in(&[0, -223]);
    say(&mut session, &INCREMENTAL);
    session.update(&small);
    viewer.read_updates(&Viewer::take(&mut session));
    assert_eq!((viewer.width, viewer.height), (50, 120));
    say(&mut session, &INCREMENTAL);
    session.update(&small);
    viewer.read_updates(&Viewer::take(&mut session));
    assert!(viewer.pixels == pixels(&small));

    let (mut session, mut viewer) = let_in(&[0]);
    say(&mut session, &INCREMENTAL);
    session.update(&small);
    viewer.read_updates(&Viewer::take(&mut session));
    assert!(viewer.pixels == pixels(&small.fitted(200, 100)));
}

#[test]
fn keys_and_the_pointer_arrive_also_byte_by_byte() {
    let (mut session, _) = let_in(&[0]);
    let bytes = [
        &[4, 1, 0, 0, 0, 0, 0, 65][..],
        &[5, 1, 0, 10, 0, 20],
        &[255, 0, 0, 1, 0, 0, 0, 65, 0, 0, 0, 0x1e],
        // Text for the clipboard is skipped.
        &[6, 0, 0, 0, 0, 0, 0, 3, 4, 4, 4],
        &[4, 0, 0, 0, 0, 0, 0, 65],
    ]
    .concat();
    let key = |is_down| Event::Key {
        is_down,
        keysym: 65,
    };
    let pointer = Event::Pointer {
        x: 10,
        y: 20,
        buttons: 1,
    };
    let placed = Event::PlacedKey {
        is_down: true,
        scancode: 0x1e,
    };
    let expected = [key(true), pointer, placed, key(false)];
    assert_eq!(events(&mut session, &bytes), expected);
    let single: Vec<Event> = bytes
        .iter()
        .flat_map(|byte| events(&mut session, &[*byte]))
        .collect();
    assert_eq!(single, expected);
}

#[test]
fn qemu_s_messages_are_announced_once() {
    let (mut session, mut viewer) = let_in(&[0, -258, -257]);
    let black = Arc::new(Frame::black(SIZE.0, SIZE.1));
    let at = [5, 0, 0, 10, 0, 20];
    let place = Event::Pointer {
        x: 10,
        y: 20,
        buttons: 0,
    };
    assert_eq!(events(&mut session, &at), [place]);
    for announced in [2, 0] {
        viewer.rectangles.clear();
        say(&mut session, &WHOLE);
        session.update(&black);
        viewer.read_updates(&Viewer::take(&mut session));
        let count = viewer.rectangles.iter().filter(|(_, number)| *number < 0);
        assert_eq!(count.count(), announced);
    }
    let moved = Event::Motion {
        right: 10 - 0x7fff,
        down: 20 - 0x7fff,
        buttons: 0,
    };
    assert_eq!(events(&mut session, &at), [moved]);
}

#[test]
fn a_viewer_that_takes_nothing_is_sent_nothing_more() {
    let (mut session, _) = let_in(&[0]);
    let mut random = Random::new(4);
    for _ in 0..100 {
        session.receive(&WHOLE, &mut Vec::new()).unwrap();
        session.update(&picture(&mut random, SIZE));
    }
    let frame = 4 + 12 + 200 * 100 * 4;
    assert!(
        session.output().len() <= frame,
        "{}",
        session.output().len()
    );
}
