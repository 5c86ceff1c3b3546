//! The views of a 32-bit guest: whose access rights a translation has.

/// The privilege whose accesses a table serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// CPL 0 to 2.
    Supervisor = 0,
    /// CPL 3.
    User = 1,
}

impl View {
    /// Both views.
    pub const ALL: [View; 2] = [View::Supervisor, View::User];
}
