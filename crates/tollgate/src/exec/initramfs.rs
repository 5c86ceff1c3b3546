//! Builds the initramfs of the guest of `tollgate exec` in memory.

use std::sync::Arc;

use tollgate_agent::protocol::MODULES_FOLDER;

use super::kernel::Module;
use tollgate_machine::boot::cpio::Archive;

/// The agent, as the build script has compiled it.
static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
/// The agent for 32-bit kernels; empty where the build script could not compile it.
static AGENT_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent-32"));

/// Whether 32-bit kernels can be used.
pub fn has_32_bit_agent() -> bool {
    !AGENT_32.is_empty()
}

/// An initramfs with the agent for such a kernel, and the modules in the order in
/// which they are loaded.
pub fn new(modules: &[Module], is_32_bit: bool) -> Arc<[u8]> {
    let agent = if is_32_bit { AGENT_32 } else { AGENT };
    archive(agent, modules).into()
}

fn archive(agent: &[u8], modules: &[Module]) -> Vec<u8> {
    let folder = &MODULES_FOLDER[1..];
    // The kernel opens the console for the agent's standard streams, even if the kernel's own
    // archive lacks it.
    let archive = Archive::new()
        .folder("dev")
        .character_device("dev/console", [5, 1])
        .program("init", agent)
        .folder(folder);
    let modules = modules.iter().enumerate();
    modules
        .fold(archive, |archive, (index, module)| {
            let name = format!("{folder}/{index:03}-{}.ko", module.name);
            archive.file(&name, &module.content)
        })
        .finish()
}

#[cfg(test)]
mod tests {
    use tollgate_test_support::skip;

    use super::*;

    #[test]
    fn what_the_agent_needs_is_there() {
        let module = Module {
            name: "fuse".into(),
            content: vec![1, 2, 3],
        };
        let archive = archive(AGENT, &[module]);
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        for name in ["init\0", "modules/000-fuse.ko\0", "TRAILER!!!\0"] {
            let at = text.find(name);
            assert!(at.is_some(), "{name}");
        }
    }

    #[test]
    fn agents_are_linked_statically() {
        // The offset, size and number of the program headers; none of them names an interpreter
        // (PT_INTERP, 3).
        for (agent, fields) in [(AGENT, [32, 54, 56]), (AGENT_32, [28, 42, 44])] {
            if agent.is_empty() {
                skip::impossible("the agent for 32-bit kernels is not built in");
                continue;
            }
            assert_eq!(&agent[..4], b"\x7fELF");
            let half = |at: usize| u16::from_le_bytes(agent[at..at + 2].try_into().unwrap());
            let [offset, size, count] = fields.map(|at| usize::from(half(at)));
            assert!(count > 0);
            for index in 0..count {
                assert_ne!(agent[offset + index * size], 3);
            }
        }
    }
}
