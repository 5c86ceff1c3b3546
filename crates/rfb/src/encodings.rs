//! The encodings that a viewer supports (RFC 6143, 7.7 and 7.8).

/// The encodings by their numbers.
pub(crate) mod number {
    pub const RAW: i32 = 0;
    pub const ZRLE: i32 = 16;
    pub const DESKTOP_SIZE: i32 = -223;
    /// QEMU's pseudo-encoding for moves of the pointer instead of positions.
    pub const POINTER_MOTION: i32 = -257;
    /// QEMU's pseudo-encoding for keys by their place on the keyboard.
    pub const EXTENDED_KEYS: i32 = -258;
}

/// The implemented encodings that the viewer supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Encodings {
    /// Whether the viewer prefers ZRLE to raw pixels.
    pub zrle: bool,
    /// Whether the viewer can show another size.
    pub desktop_size: bool,
    /// Whether the viewer can send moves of the pointer instead of positions.
    pub pointer_motion: bool,
    /// Whether the viewer can send keys by their place.
    pub extended_keys: bool,
}

impl Encodings {
    /// Selects from a list, which begins with the encoding that the viewer prefers most.
    pub fn of(list: impl Iterator<Item = i32>) -> Self {
        let mut encodings = Self::default();
        let mut likes_raw = false;
        for encoding in list {
            match encoding {
                number::RAW => likes_raw |= !encodings.zrle,
                number::ZRLE => encodings.zrle = !likes_raw,
                number::DESKTOP_SIZE => encodings.desktop_size = true,
                number::POINTER_MOTION => encodings.pointer_motion = true,
                number::EXTENDED_KEYS => encodings.extended_keys = true,
                _ => {}
            }
        }
        encodings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_viewer_s_order_decides() {
        assert!(Encodings::of([7, 16, 0].into_iter()).zrle);
        assert!(!Encodings::of([0, 16].into_iter()).zrle);
        assert!(!Encodings::of([5, 1].into_iter()).zrle);
        let all = Encodings::of([-223, -257, -258, 99].into_iter());
        assert!(all.desktop_size && all.pointer_motion && all.extended_keys);
    }
}
