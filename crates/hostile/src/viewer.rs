//! Hostile input for the VNC server: random bytes from a viewer, while the screen changes.

use crate::input::Input;
use std::sync::Arc;
use tollgate_rfb::{Event, Frame, Password, Session};

/// Sizes of the screen, small so that pictures take little time.
const SIZES: [(u16, u16); 4] = [(80, 50), (65, 17), (1, 1), (200, 3)];
/// The maximum size in bytes of a picture: four for each pixel, and the data around it.
const MOST_OUTPUT: usize = 40_000;
const CHALLENGE: [u8; 16] = *b"not that random.";

/// Passes the input to a session, piece by piece.
///
/// # Panics
///
/// Panics if the session breaks a promise: it does what a viewer wants that has not given the
/// password, sends endlessly, or continues after it has refused to.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choices = input.byte();
    let password = Password::new(b"password").filter(|_| choices & 1 != 0);
    // The answer of a viewer that knows the password.
    let knows_password = choices & 2 != 0;
    let answer = password.as_ref().map(|it| it.answer(CHALLENGE));
    let mut session = Session::new(password, CHALLENGE, SIZES[0], "a screen");
    let mut frames = SIZES.into_iter().cycle().map(|(width, height)| {
        let bytes = usize::from(width) * usize::from(height) * Frame::PIXEL_BYTES;
        let pixels = (0..bytes).map(|at| (at / 7 * usize::from(choices)) as u8);
        Frame::new(width, height, pixels.collect()).expect("a picture")
    });
    let mut frame = Arc::new(Frame::black(SIZES[0].0, SIZES[0].1));
    let mut has_ended = false;
    while !input.is_empty() {
        let what = input.byte();
        let mut events = Vec::new();
        match (what & 7, answer) {
            (0, _) => session.update(&frame),
            (1, _) => frame = Arc::new(frames.next().expect("without end")),
            (2, _) => session.sent(usize::from(what) * 100),
            (3, Some(answer)) if knows_password => {
                has_ended |= session.receive(&answer, &mut events).is_err();
            }
            _ => {
                let bytes = input.bytes(usize::from(what >> 3));
                has_ended |= session.receive(bytes, &mut events).is_err();
            }
        }
        check(&session, &events, has_ended);
        let may_be_let_in = answer.is_none() || knows_password;
        assert!(
            may_be_let_in || !session.is_let_in(),
            "without the password"
        );
    }
}

fn check(session: &Session, events: &[Event], has_ended: bool) {
    let output = session.output().len();
    assert!(output <= MOST_OUTPUT, "{output} bytes for the viewer");
    assert!(!(has_ended && session.is_let_in()), "it goes on");
    assert!(events.is_empty() || session.is_let_in() || has_ended);
}

/// Inputs of real viewers, in pieces as [`run`] takes them.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let piece = |bytes: &[u8]| -> Vec<u8> {
        let pieces = bytes.chunks(31);
        pieces
            .flat_map(|part| [&[(part.len() as u8) << 3 | 4], part].concat())
            .collect()
    };
    let messages: [&[u8]; 8] = [
        &[
            2, 0, 0, 4, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0x21, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff,
            0xfe, 0xfe,
        ],
        &[3, 0, 0, 0, 0, 0, 0, 80, 0, 50],
        &[4, 1, 0, 0, 0, 0, 0, 65],
        &[5, 1, 0, 3, 0, 4],
        &[255, 0, 0, 1, 0, 0, 0, 65, 0, 0, 0, 30],
        &[6, 0, 0, 0, 0, 0, 0, 2, 7, 7],
        &[
            0, 0, 0, 0, 16, 16, 1, 1, 0, 31, 0, 63, 0, 31, 11, 5, 0, 0, 0, 0,
        ],
        &[3, 1, 0, 0, 0, 0, 0, 80, 0, 50],
    ];
    let talk: Vec<u8> = messages
        .iter()
        .flat_map(|message| [piece(message), vec![0, 0xfa, 0xfa, 1, 0, 0xfa]].concat())
        .collect();
    let greet = |choices: u8, version: &[u8], kind: &[u8], shared: &[u8]| {
        let begin = [&[choices], &*piece(version), &*piece(kind), &[0xfa]].concat();
        [begin, vec![3], piece(shared), vec![0xfa], talk.clone()].concat()
    };
    vec![
        ("open".into(), greet(0, b"RFB 003.008\n", &[1], &[1])),
        ("open-3.7".into(), greet(0, b"RFB 003.007\n", &[1], &[0])),
        ("open-3.3".into(), greet(0, b"RFB 003.003\n", &[], &[1])),
        ("password".into(), greet(3, b"RFB 003.008\n", &[2], &[1])),
        ("locked".into(), greet(1, b"RFB 003.008\n", &[2], &[1])),
    ]
}
