//! The vector registers as a guest sees them, for comparisons.

use tollgate_x86::state::VectorState;
use tollgate_x86::xsave::EXTENDED;

/// The save area in a unique form: components that the header marks as initial are written out, and
/// the header is left out. Whether a processor marks a component in its initial configuration is
/// its own choice (SDM volume 1, 13.6), and depends on what the host did in between.
pub fn visible_vectors(vector: &VectorState) -> Vec<u8> {
    let mut bytes = vector.0.to_vec();
    let initial = VectorState::initial();
    let in_use = bytes[512];
    let extended = EXTENDED.map(|part| (part.bit as u8, part.start..part.start + part.size));
    let legacy = [(1, 0..24), (1, 32..160), (2, 160..416)];
    for (bit, range) in legacy.into_iter().chain(extended) {
        if in_use & bit == 0 {
            bytes[range.clone()].copy_from_slice(&initial.0[range]);
        }
    }
    // The bits of MXCSR that the host supports do not belong to the guest's state.
    bytes[28..32].fill(0);
    bytes[512..576].fill(0);
    bytes
}
