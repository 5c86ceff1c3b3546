//! The ways in which translated code is left, as the runner reports them.

/// The exits that only translated code has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslatedExit {
    /// A signal took guest code out: a request to leave, or a host fault.
    Signal,
    /// Guest code left at this site, encoded by [`tollgate_engine::abi::sites::pack_site`].
    Site(u32),
}
