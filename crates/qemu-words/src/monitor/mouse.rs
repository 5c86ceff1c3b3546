//! Keys and the mouse from monitors: QMP's `input-send-event`, HMP's `mouse_move` and
//! `mouse_button`.

use super::fault::Fault;
use super::machine::{Button, Machine, Motion};
use serde_json::Value;

/// The name of a key: `{"type": "qcode", "data": "ret"}`.
pub fn key_name(key: &Value) -> Result<&str, Fault> {
    let wrong = || Fault::generic("a key is {\"type\": \"qcode\", \"data\": NAME}");
    match key["type"].as_str() {
        Some("qcode") => key["data"].as_str().ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// Sends the events of `input-send-event`: the mouse makes all its moves together.
///
/// # Errors
/// An event is of another kind, or the guest reads none.
pub fn send_events(arguments: &Value, machine: &mut dyn Machine) -> Result<(), Fault> {
    let events = arguments["events"].as_array();
    let events = events.ok_or_else(|| Fault::generic("Parameter 'events' is missing"))?;
    let mut motion = Motion::default();
    for event in events {
        let data = &event["data"];
        let down = || {
            let down = data["down"].as_bool();
            down.ok_or_else(|| Fault::generic("Parameter 'down' is missing"))
        };
        match event["type"].as_str() {
            Some("key") => machine.key(key_name(&data["key"])?, down()?)?,
            Some("rel") => {
                let count = data["value"].as_i64().and_then(|it| i32::try_from(it).ok());
                let count = count.ok_or_else(|| Fault::generic("Parameter 'value' is missing"))?;
                match data["axis"].as_str() {
                    Some("x") => motion.right = motion.right.saturating_add(count),
                    Some("y") => motion.down = motion.down.saturating_add(count),
                    _ => return Err(Fault::generic("an axis is x or y")),
                }
            }
            Some("btn") => match (data["button"].as_str(), down()?) {
                (Some("left"), down) => motion.buttons.push((Button::Left, down)),
                (Some("middle"), down) => motion.buttons.push((Button::Middle, down)),
                (Some("right"), down) => motion.buttons.push((Button::Right, down)),
                // A step is made when the button is pressed.
                (Some("wheel-up"), down) => motion.wheel -= i32::from(down),
                (Some("wheel-down"), down) => motion.wheel += i32::from(down),
                _ => {
                    let why = "a button is left, middle, right, wheel-up or wheel-down";
                    return Err(Fault::generic(why));
                }
            },
            _ => {
                return Err(Fault::generic(
                    "events are key, rel and btn: the mouse has no absolute places",
                ));
            }
        }
    }
    match motion == Motion::default() {
        true => Ok(()),
        false => Ok(machine.mouse(motion)?),
    }
}

fn number(text: &str) -> Result<i32, String> {
    let number = text.parse();
    number.map_err(|_| format!("'{text}' is no number of counts"))
}

/// Moves the mouse: `mouse_move dx dy [dz]`. A positive dz turns the wheel away from the user.
///
/// # Errors
/// A word is no number, or the guest reads no mouse.
pub fn step(
    right: &str,
    down: &str,
    rest: &[&str],
    machine: &mut dyn Machine,
) -> Result<String, String> {
    let wheel = rest.first().map_or(Ok(0), |steps| number(steps))?;
    machine.mouse(Motion {
        right: number(right)?,
        down: number(down)?,
        wheel: wheel.saturating_neg(),
        buttons: Vec::new(),
    })?;
    Ok(String::new())
}

/// Says which buttons are down: `mouse_button state`.
///
/// # Errors
/// The word is no number, or the guest reads no mouse.
pub fn buttons(state: &str, machine: &mut dyn Machine) -> Result<String, String> {
    let state = number(state)?;
    let buttons = [(1, Button::Left), (2, Button::Middle), (4, Button::Right)];
    machine.mouse(Motion {
        buttons: buttons
            .map(|(bit, button)| (button, state & bit != 0))
            .to_vec(),
        ..Motion::default()
    })?;
    Ok(String::new())
}
