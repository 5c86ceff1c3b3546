//! The actions of `tollgate type --mouse`: moves, clicks and steps of the wheel.

use tollgate_machine::board::input::{Buttons, MouseEvent};
use tollgate_machine::vm_handle::VmHandle;

/// The longest move, and the largest number of wheel steps, of one action.
const MOST: i32 = 100_000;

/// An action as it is written, such as `move:10,-5` or `click:right`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Move { right: i32, down: i32 },
    Wheel(i32),
    Click(Buttons),
    Press(Buttons),
    Release(Buttons),
}

/// Checks that a text is an action.
///
/// # Errors
///
/// A message says what is wrong with the text.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(|_| ())
}

/// Performs an action; returns false if the mouse has no room for it now.
///
/// # Errors
///
/// The text is not an action, and nothing was done.
pub fn act(text: &str, handle: &VmHandle) -> Result<bool, String> {
    let before = handle.mouse_buttons();
    let still = MouseEvent {
        buttons: before,
        ..MouseEvent::default()
    };
    let with = |buttons| MouseEvent { buttons, ..still };
    Ok(match parse(text)? {
        Action::Move { right, down } => handle.mouse(&[MouseEvent {
            right,
            down,
            ..still
        }]),
        Action::Wheel(wheel) => handle.mouse(&[MouseEvent { wheel, ..still }]),
        Action::Click(button) => handle.mouse(&[with(before | button), with(before - button)]),
        Action::Press(button) => handle.mouse(&[with(before | button)]),
        Action::Release(button) => handle.mouse(&[with(before - button)]),
    })
}

fn parse(text: &str) -> Result<Action, String> {
    let (verb, rest) = match text.split_once(':') {
        Some((verb, rest)) => (verb, Some(rest)),
        None => (text, None),
    };
    let number = |text: &str| {
        let number = text.trim().parse().ok();
        number
            .filter(|number: &i32| (-MOST..=MOST).contains(number))
            .ok_or_else(|| format!("--mouse {verb}: '{text}' is no number from -{MOST} to {MOST}"))
    };
    let button = || match rest {
        None | Some("left") => Ok(Buttons::LEFT),
        Some("right") => Ok(Buttons::RIGHT),
        Some("middle") => Ok(Buttons::MIDDLE),
        Some(other) => Err(format!(
            "--mouse {verb}: no button '{other}': left, right or middle"
        )),
    };
    match (verb, rest) {
        ("move", Some(rest)) => {
            let (right, down) = rest
                .split_once(',')
                .ok_or_else(|| format!("--mouse move: '{rest}': expected RIGHT,DOWN"))?;
            Ok(Action::Move {
                right: number(right)?,
                down: number(down)?,
            })
        }
        ("wheel", Some(rest)) => Ok(Action::Wheel(number(rest)?)),
        ("click", _) => button().map(Action::Click),
        ("press", _) => button().map(Action::Press),
        ("release", _) => button().map(Action::Release),
        _ => Err(format!(
            "--mouse: '{text}': expected move:RIGHT,DOWN, click[:BUTTON], press[:BUTTON], \
             release[:BUTTON] or wheel:STEPS"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_said_in_words() {
        let moved = Action::Move {
            right: 10,
            down: -5,
        };
        assert_eq!(parse("move:10,-5"), Ok(moved));
        assert_eq!(parse("wheel:-3"), Ok(Action::Wheel(-3)));
        assert_eq!(parse("click"), Ok(Action::Click(Buttons::LEFT)));
        assert_eq!(parse("press:right"), Ok(Action::Press(Buttons::RIGHT)));
        let release = Action::Release(Buttons::MIDDLE);
        assert_eq!(parse("release:middle"), Ok(release));
        for bad in [
            "",
            "move",
            "move:1",
            "move:1,x",
            "move:1,100001",
            "wheel",
            "wheel:",
            "click:third",
            "drag:1,1",
        ] {
            assert!(parse(bad).unwrap_err().starts_with("--mouse"), "{bad}");
        }
    }

    #[test]
    fn a_button_stays_down_until_it_is_released() {
        let handle = VmHandle::new();
        for action in ["press", "move:3,4", "click:right", "release"] {
            assert_eq!(act(action, &handle), Ok(true), "{action}");
        }
        let commands = handle.commands();
        let events: Vec<_> = std::iter::from_fn(|| commands.take_mouse()).collect();
        let buttons: Vec<u8> = events.iter().map(|event| event.buttons.bits()).collect();
        assert_eq!(buttons, [1, 1, 3, 1, 0]);
        assert_eq!((events[1].right, events[1].down), (3, 4));
    }
}
