//! Copies between the monitor's buffers and guest RAM at addresses that the software TLB has
//! resolved.

/// Copies `data.len()` bytes out of guest RAM. The guest view must have returned `host`, and the
/// bytes must not extend beyond its page.
pub fn copy_from(host: *mut u8, data: &mut [u8]) {
    // SAFETY: the guest view hands out addresses inside the flat mapping of guest RAM,
    // which lives as long as the VM; callers stay inside the page. Only the vCPU's own
    // thread, which runs this, accesses guest memory.
    unsafe { std::ptr::copy_nonoverlapping(host, data.as_mut_ptr(), data.len()) };
}

/// Copies `data` into guest RAM. The guest view must have returned `host`, and the bytes must not
/// extend beyond its page.
pub fn copy_to(host: *mut u8, data: &[u8]) {
    // SAFETY: as in `copy_from`; in addition, the page holds no translated code.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), host, data.len()) };
}
