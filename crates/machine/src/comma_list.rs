//! Comma-separated lists as QEMU's users write them.

/// Splits a list at single commas. A doubled comma stands for one that belongs to the text. Empty
/// parts are left out.
pub fn split(list: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        if character != ',' {
            parts.last_mut().expect("never empty").push(character);
        } else if characters.next_if_eq(&',').is_some() {
            parts.last_mut().expect("never empty").push(',');
        } else {
            parts.push(String::new());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_split_at_single_commas() {
        assert_eq!(split("a,b x=1,,2"), ["a", "b x=1,2"]);
        assert_eq!(split(""), Vec::<String>::new());
        assert_eq!(split(",a,"), ["a"]);
    }
}
