//! Instructions that access some elements of memory and not others, as a mask says: what is
//! masked out must not fault, so they are never copied.

use iced_x86::Mnemonic;

/// A gather or a masked move of vectors, whose elements the monitor accesses one by one.
pub fn is_masked_access(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Maskmovq
            | Maskmovdqu
            | Vmaskmovdqu
            | Vmaskmovps
            | Vmaskmovpd
            | Vpmaskmovd
            | Vpmaskmovq
            | Vgatherdps
            | Vgatherdpd
            | Vgatherqps
            | Vgatherqpd
            | Vpgatherdd
            | Vpgatherdq
            | Vpgatherqd
            | Vpgatherqq
    )
}
