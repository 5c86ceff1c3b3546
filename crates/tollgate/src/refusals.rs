//! What the guest could not reach because of its network's rules, as text.

use tollgate_machine::config::{Refused, RefusedList};

use crate::failure::one_line;

/// How many destinations `--stats` shows; `tollgate control SOCKET refused` shows all that are kept.
const MOST_IN_STATISTICS: usize = 10;

/// The whole list, the latest at the end.
pub fn list(refused: &RefusedList) -> String {
    let mut lines = vec![format!("refused: {}", refused.total)];
    lines.extend(refused.last.iter().map(line));
    lines.join("\n")
}

/// Lines for the end of `--stats`; none if nothing was refused.
pub fn for_statistics(refused: &RefusedList) -> String {
    if refused.total == 0 {
        return String::new();
    }
    let skipped = refused.last.len().saturating_sub(MOST_IN_STATISTICS);
    let note = match skipped {
        0 => "",
        _ => " (the last ones)",
    };
    let mut text = format!("refused by the network's rules: {}{note}\n", refused.total);
    for refused in &refused.last[skipped..] {
        text.push_str(&line(refused));
        text.push('\n');
    }
    text
}

fn line(refused: &Refused) -> String {
    let count = refused.count;
    one_line(&format!("{count:>7}  {refused}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(count: usize) -> RefusedList {
        let refused = |number| Refused {
            protocol: tollgate_machine::config::Protocol::Tcp,
            destination: format!("192.0.2.{number}:80"),
            reason: "not in allow=".into(),
            count: 2,
        };
        RefusedList {
            total: 2 * count as u64,
            last: (0..count).map(refused).collect(),
        }
    }

    #[test]
    fn statistics_show_the_last_ones_and_nothing_where_nothing_was_refused() {
        assert_eq!(for_statistics(&refused(0)), "");
        let text = for_statistics(&refused(12));
        assert!(
            text.starts_with("refused by the network's rules: 24 (the last ones)\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 11);
        assert!(
            text.ends_with("      2  tcp 192.0.2.11:80: not in allow=\n"),
            "{text}"
        );
        assert_eq!(list(&refused(12)).lines().count(), 13);
        assert_eq!(list(&refused(0)), "refused: 0");
    }
}
