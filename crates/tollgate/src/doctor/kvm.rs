//! The check of /dev/kvm: not only present, but usable.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use super::check::Check;
use crate::host;

/// The ioctl KVM_GET_API_VERSION.
const GET_API_VERSION: libc::Ioctl = 0xae00;
/// The ioctl KVM_CREATE_VM.
const CREATE_VM: libc::Ioctl = 0xae01;
/// The ioctl KVM_CREATE_VCPU.
const CREATE_VCPU: libc::Ioctl = 0xae41;
/// The version of KVM's interface, which has never changed.
const API_VERSION: libc::c_int = 12;

/// The check of KVM. Tollgate does not need KVM; where KVM works it is the better choice.
pub fn optional() -> Check {
    let (works, found) = match probe() {
        Ok(()) if has_hardware_support() => (
            true,
            "works: where KVM works, KVM is the better choice".into(),
        ),
        Ok(()) => (
            true,
            "works, but the processor shows neither VMX nor SVM: its exits may be slow".into(),
        ),
        Err(why) => (false, why),
    };
    Check::optional(
        "/dev/kvm",
        works,
        found,
        "nothing: tollgate is made for hosts without it",
    )
}

/// Whether the processor offers VMX (CPUID leaf 1, ECX bit 5) or SVM (leaf 80000001h, ECX bit 2).
fn has_hardware_support() -> bool {
    use std::arch::x86_64::__cpuid;
    let vmx = __cpuid(1).ecx & 1 << 5 != 0;
    let svm = __cpuid(0x8000_0000).eax > 0x8000_0000 && __cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    vmx || svm
}

/// Makes a request of KVM that takes an integer, here 0, and returns an integer or a descriptor.
fn request(device: &impl AsRawFd, request: libc::Ioctl) -> libc::c_int {
    // SAFETY: none of this file's requests takes a pointer.
    unsafe { libc::ioctl(device.as_raw_fd(), request, 0) }
}

/// Creates a virtual machine with one processor, and destroys it.
fn probe() -> Result<(), String> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => "absent".into(),
            ErrorKind::PermissionDenied => "present, but you may not open it".into(),
            _ => format!("present, but cannot be opened: {error}"),
        })?;
    let version = request(&device, GET_API_VERSION);
    if version != API_VERSION {
        return Err(format!("present, but speaks version {version}"));
    }
    let machine = host::owned(request(&device, CREATE_VM))
        .map_err(|error| format!("present, but creates no machine: {error}"))?;
    host::owned(request(&machine, CREATE_VCPU))
        .map_err(|error| format!("present, but creates no processor: {error}"))?;
    Ok(())
}
