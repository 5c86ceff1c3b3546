//! One option: its names, its value, and what becomes of it.

/// What becomes of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// It does what QEMU's manual says.
    Done,
    /// It is accepted and makes no difference.
    NoDifference,
    /// Some values are refused, or accepted without making a difference.
    Partly,
    /// It is refused.
    Refused,
    /// QEMU does not have it.
    Own,
}

impl Treatment {
    /// The words for the table of all options.
    #[cfg(test)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NoDifference => "accepted, makes no difference",
            Self::Partly => "partly",
            Self::Refused => "refused",
            Self::Own => "Tollgate's own",
        }
    }
}

/// An option of the command line.
#[derive(Debug)]
pub struct Row {
    /// Its name without the dash.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// Whether the next word is its value.
    pub takes_value: bool,
    /// Its value in the help, such as `size`.
    pub form: &'static str,
    /// What becomes of it.
    pub treatment: Treatment,
    /// What there is to know about it; why it is refused.
    pub note: &'static str,
}

/// Makes a row: name, other names, value, treatment, note.
pub const fn row(
    name: &'static str,
    aliases: &'static [&'static str],
    form: &'static str,
    treatment: Treatment,
    note: &'static str,
) -> Row {
    Row {
        name,
        aliases,
        takes_value: !form.is_empty(),
        form,
        treatment,
        note,
    }
}
