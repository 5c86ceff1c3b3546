//! What the check of an image finds.

/// A result of the check.
pub(super) enum Finding {
    /// A cluster is counted too often, which does no harm.
    Leak(String),
    /// There is a defect that writing does not make worse.
    Harmless(String),
    /// A table is in use but not counted, which is repaired before the image is written.
    Uncounted(String),
    /// There is a defect that writing could make worse.
    Hazard(String),
}
