//! Zeroed tables of [`Cell`]s that cost host memory only where they are written.

use std::cell::Cell;

/// Puts each value in a cell. If the allocator returned the vector zeroed, its untouched pages
/// still cost no memory.
pub fn cells<T>(values: Vec<T>) -> Box<[Cell<T>]> {
    let values = Box::into_raw(values.into_boxed_slice());
    // SAFETY: `Cell<T>` has the layout of `T` (as its documentation promises), so the cast slice
    // has the same elements and allocation; `values` is owned and given up here.
    unsafe { Box::from_raw(values as *mut [Cell<T>]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_hold_the_values_and_take_new_ones() {
        let table = cells(vec![1u8, 2, 3]);
        table[1].set(9);
        let values: Vec<_> = table.iter().map(Cell::get).collect();
        assert_eq!(values, [1, 9, 3]);
    }
}
