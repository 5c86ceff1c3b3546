//! What a viewer understands (RFC 6143, 7.7 and 7.8).

/// Encodings by their numbers.
pub(crate) mod number {
    pub const RAW: i32 = 0;
    pub const ZRLE: i32 = 16;
    pub const DESKTOP_SIZE: i32 = -223;
    /// QEMU's: whether the pointer's places are moves.
    pub const POINTER_MOTION: i32 = -257;
    /// QEMU's: keys by their place on the keyboard.
    pub const EXTENDED_KEYS: i32 = -258;
}

/// Of the encodings that there are, those that the viewer has named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Encodings {
    /// It prefers ZRLE to bare pixels.
    pub zrle: bool,
    /// It can show another size.
    pub desktop_size: bool,
    /// It can send moves of the pointer instead of places.
    pub pointer_motion: bool,
    /// It can send keys by their place.
    pub extended_keys: bool,
}

impl Encodings {
    /// Those of a list, which begins with what the viewer likes best.
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
