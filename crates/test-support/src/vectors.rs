//! The vector registers as a guest sees them, to be compared.

use tollgate_x86::state::VectorState;
use tollgate_x86::xsave::EXTENDED;

/// The save area as everybody sees it: what the header calls initial is written out, and the header
/// left out. When a processor calls a component that is in its initial configuration so is its own
/// choice (SDM volume 1, 13.6), and differs with what the host did in between.
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
    // Which masks of MXCSR the host knows is not the guest's.
    bytes[28..32].fill(0);
    bytes[512..576].fill(0);
    bytes
}
