//! The packed sites of a block, as a sequence of bytes.
//!
//! A block has three or four sites. Unpacked, a site has 40 bytes, and one site is read when guest
//! code leaves there. So a block keeps its sites as a sequence, some eight bytes for a site:
//!
//! ```text
//! form                     the kind, and which of the optional parts there are
//! retry                    2 bytes
//! EIP                      2 bytes from the block's first instruction; for a slot 4
//! what the kind has        of offsets in the code, the distances from one to the next
//! ESP's distance, after, ESP's distance there, what is held off
//!                          1 byte each, only if the value is not the usual one
//! ```
//!
//! A site with a number that does not fit has `kind::WIDE` in its form, then its kind, then the
//! same parts as numbers of any size (`varint.rs`). The sites of every block are packed when the
//! block is translated, so packing must be fast.

use super::sites::{LinkPlace, NO_AFTER, Site, SiteKind, WindowMiss};
use super::state_map::Shadow;
use super::varint::{Packer, take, take_signed};
use tollgate_x86::Vector;

/// The kinds of sites, as the low four bits of a site's first byte.
mod kind {
    pub(super) const DIRECT: u8 = 0;
    pub(super) const DIRECT_WINDOWLESS: u8 = 1;
    pub(super) const SLOT: u8 = 2;
    pub(super) const INDIRECT: u8 = 3;
    pub(super) const LEVEL_CHANGED: u8 = 4;
    pub(super) const FAR: u8 = 5;
    pub(super) const MEMORY: u8 = 6;
    pub(super) const SYSTEM_READ: u8 = 7;
    pub(super) const SLOW: u8 = 8;
    pub(super) const HELPER: u8 = 9;
    pub(super) const VECTOR_LOAD: u8 = 10;
    pub(super) const CONTINUE: u8 = 11;
    pub(super) const FAULT: u8 = 12;
    /// The kind is in the next byte, and all numbers may have any size.
    pub(super) const WIDE: u8 = 15;
}

/// Bit of the first byte: ESP's distance is not zero.
const HAS_ESP: u8 = 1 << 4;
/// Bit of the first byte: control may continue after the instruction.
const HAS_AFTER: u8 = 1 << 5;
/// Bit of the first byte: ESP's distance changes with the instruction.
const HAS_AFTER_ESP: u8 = 1 << 6;
/// Bit of the first byte: the instruction holds something off.
const HAS_SHADOW: u8 = 1 << 7;

/// The most bytes of a packed site, and the room in which a site is written.
pub(crate) const LONGEST: usize = 64;

/// The room in which a site that is not wide is written.
struct Place<'a> {
    bytes: &'a mut [u8; LONGEST],
    length: usize,
}

impl Place<'_> {
    #[inline]
    fn put<const BYTES: usize>(&mut self, value: [u8; BYTES]) {
        // A site that is not wide has at most 24 bytes.
        let at = self.length % 32;
        self.bytes[at..at + BYTES].copy_from_slice(&value);
        self.length += BYTES;
    }

    #[inline]
    fn put_if(&mut self, there_is: bool, value: u8) {
        if there_is {
            self.put([value]);
        }
    }
}

/// Packs sites of a block whose first instruction is at `start` into `out` from the index `at` on,
/// where [`LONGEST`] bytes are free for each. Returns the index after them.
pub(crate) fn pack_sites(sites: &[Site], start: u64, out: &mut [u8], mut at: usize) -> usize {
    for site in sites {
        let Some(place) = out[at..].first_chunk_mut() else {
            break;
        };
        at += pack_site(site, start, place);
    }
    at
}

/// Packs a site into the first of these bytes. Returns how many it uses.
#[inline]
fn pack_site(site: &Site, start: u64, bytes: &mut [u8; LONGEST]) -> usize {
    let rip = site.rip.wrapping_sub(start) as i64;
    let after = if site.after == NO_AFTER {
        0
    } else {
        site.after.wrapping_sub(site.retry)
    };
    let moved = site.after_esp.wrapping_sub(site.esp);
    let fits = site.retry <= 0xffff
        && after <= 0xff
        && i8::try_from(site.esp).is_ok()
        && i8::try_from(moved).is_ok();
    let is_slot = matches!(site.kind, SiteKind::Link(LinkPlace::Slot { .. }));
    let rip_fits = match is_slot {
        true => i32::try_from(rip).is_ok(),
        false => i16::try_from(rip).is_ok(),
    };
    let form = form_of(site);
    let mut place = Place { bytes, length: 0 };
    place.put([form]);
    place.put((site.retry as u16).to_le_bytes());
    match is_slot {
        true => place.put((rip as i32).to_le_bytes()),
        false => place.put((rip as i16).to_le_bytes()),
    }
    if !(fits && rip_fits && put_kind(site, &mut place)) {
        return pack_wide(site, start, bytes);
    }
    place.put_if(form & HAS_ESP != 0, site.esp as u8);
    place.put_if(form & HAS_AFTER != 0, after as u8);
    place.put_if(form & HAS_AFTER_ESP != 0, moved as u8);
    place.put_if(form & HAS_SHADOW != 0, shadow_number(site.shadowed));
    place.length
}

/// The first byte of a site that is not wide.
#[inline]
fn form_of(site: &Site) -> u8 {
    let has = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
    let kind = match site.kind {
        SiteKind::Link(LinkPlace::Direct {
            windowless: None, ..
        }) => kind::DIRECT,
        SiteKind::Link(LinkPlace::Direct { .. }) => kind::DIRECT_WINDOWLESS,
        SiteKind::Link(LinkPlace::Slot { .. }) => kind::SLOT,
        SiteKind::Indirect => kind::INDIRECT,
        SiteKind::LevelChanged => kind::LEVEL_CHANGED,
        SiteKind::Far => kind::FAR,
        SiteKind::Memory { .. } => kind::MEMORY,
        SiteKind::SystemRead { .. } => kind::SYSTEM_READ,
        SiteKind::Slow => kind::SLOW,
        SiteKind::Helper(_) => kind::HELPER,
        SiteKind::VectorLoad => kind::VECTOR_LOAD,
        SiteKind::Continue => kind::CONTINUE,
        SiteKind::Fault(_) => kind::FAULT,
    };
    kind | has(site.esp != 0, HAS_ESP)
        | has(site.after != NO_AFTER, HAS_AFTER)
        | has(site.after_esp != site.esp, HAS_AFTER_ESP)
        | has(site.shadowed != Shadow::None, HAS_SHADOW)
}

fn shadow_number(shadow: Shadow) -> u8 {
    u8::from(shadow == Shadow::All)
}

/// Puts the data of a site's kind. Returns false if a number does not fit.
#[inline]
fn put_kind(site: &Site, place: &mut Place<'_>) -> bool {
    match site.kind {
        SiteKind::Link(LinkPlace::Direct {
            distance,
            stub,
            windowless,
        }) => {
            let from_retry = distance.wrapping_sub(site.retry);
            place.put([from_retry as u8]);
            place.put((stub as u16).to_le_bytes());
            if let Some(miss) = windowless {
                place.put(miss.to_bytes());
            }
            from_retry <= 0xff && stub <= 0xffff
        }
        SiteKind::Link(LinkPlace::Slot { slot, stub }) => {
            let [low, middle, high, highest] = slot.to_le_bytes();
            place.put([low, middle, high]);
            place.put((stub as u16).to_le_bytes());
            highest == 0 && stub <= 0xffff
        }
        SiteKind::Memory { size, write } => {
            place.put([size << 1 | u8::from(write)]);
            size < 0x80
        }
        SiteKind::SystemRead { size, helper } => {
            place.put([size]);
            place.put(helper.to_le_bytes());
            true
        }
        SiteKind::Helper(number) => {
            place.put(number.to_le_bytes());
            true
        }
        SiteKind::Fault(vector) => {
            place.put([vector as u8]);
            true
        }
        SiteKind::Indirect
        | SiteKind::LevelChanged
        | SiteKind::Far
        | SiteKind::Slow
        | SiteKind::VectorLoad
        | SiteKind::Continue => true,
    }
}

/// Packs a site like [`pack_site`], but with room for numbers of any size.
#[cold]
fn pack_wide(site: &Site, start: u64, bytes: &mut [u8; LONGEST]) -> usize {
    let form = form_of(site);
    let mut out = Packer::new(bytes, 0);
    out.byte(form | kind::WIDE);
    out.byte(form & kind::WIDE);
    out.put(u64::from(site.retry));
    out.put_signed(site.rip.wrapping_sub(start) as i64);
    match site.kind {
        SiteKind::Link(LinkPlace::Direct {
            distance,
            stub,
            windowless,
        }) => {
            out.put(u64::from(distance));
            out.put(u64::from(stub));
            for byte in windowless.into_iter().flat_map(WindowMiss::to_bytes) {
                out.byte(byte);
            }
        }
        SiteKind::Link(LinkPlace::Slot { slot, stub }) => {
            out.put(u64::from(slot));
            out.put(u64::from(stub));
        }
        SiteKind::Memory { size, write } => {
            out.byte(size);
            out.byte(u8::from(write));
        }
        SiteKind::SystemRead { size, helper } => {
            out.byte(size);
            out.put(u64::from(helper));
        }
        SiteKind::Helper(number) => out.put(u64::from(number)),
        SiteKind::Fault(vector) => out.byte(vector as u8),
        SiteKind::Indirect
        | SiteKind::LevelChanged
        | SiteKind::Far
        | SiteKind::Slow
        | SiteKind::VectorLoad
        | SiteKind::Continue => {}
    }
    out.put_signed(i64::from(site.esp));
    out.put(u64::from(site.after));
    out.put_signed(i64::from(site.after_esp));
    out.byte(shadow_number(site.shadowed));
    out.finish()
}

/// The packed sites of a block.
#[derive(Clone, Copy, Debug)]
pub struct PackedSites<'a> {
    bytes: &'a [u8],
    start: u64,
}

impl<'a> PackedSites<'a> {
    /// The sites that [`pack_sites`] packed with the same `start`.
    pub(crate) fn new(bytes: &'a [u8], start: u64) -> Self {
        Self { bytes, start }
    }

    /// All sites, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Site> + 'a {
        let mut rest = self.bytes;
        std::iter::from_fn(move || unpack_site(&mut rest, self.start))
    }

    /// The site with a number.
    pub fn get(self, number: usize) -> Option<Site> {
        let mut rest = self.bytes;
        for _ in 0..number {
            skip_site(&mut rest)?;
        }
        unpack_site(&mut rest, self.start)
    }
}

fn take_bytes<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (bytes, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*bytes)
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    take_bytes::<1>(rest).map(|[byte]| byte)
}

fn take_u16(rest: &mut &[u8]) -> Option<u32> {
    take_bytes(rest).map(|bytes| u16::from_le_bytes(bytes).into())
}

fn shadow_of(number: u8) -> Shadow {
    match number {
        0 => Shadow::Interrupts,
        _ => Shadow::All,
    }
}

/// Skips a site without unpacking it, on the way to one of a block's later sites.
#[inline]
fn skip_site(rest: &mut &[u8]) -> Option<()> {
    /// The number of bytes of form, retry, EIP and the kind's data, by kind.
    const BYTES: [u8; 16] = {
        let mut bytes = [5; 16];
        bytes[kind::DIRECT as usize] += 3;
        bytes[kind::DIRECT_WINDOWLESS as usize] += 6;
        bytes[kind::SLOT as usize] += 7;
        bytes[kind::MEMORY as usize] += 1;
        bytes[kind::SYSTEM_READ as usize] += 3;
        bytes[kind::HELPER as usize] += 2;
        bytes[kind::FAULT as usize] += 1;
        bytes
    };
    let form = *rest.first()?;
    let number = form & 0xf;
    if number == kind::WIDE {
        return unpack_site(rest, 0).map(|_| ());
    }
    let optional = (form >> 4).count_ones() as usize;
    *rest = rest.get(usize::from(BYTES[usize::from(number)]) + optional..)?;
    Some(())
}

fn unpack_site(rest: &mut &[u8], start: u64) -> Option<Site> {
    let form = take_byte(rest)?;
    let has = |bit: u8| form & bit != 0;
    let number = form & 0xf;
    if number == kind::WIDE {
        return unpack_wide(has(HAS_SHADOW), rest, start);
    }
    let retry = take_u16(rest)?;
    let rip = match number {
        kind::SLOT => i64::from(i32::from_le_bytes(take_bytes(rest)?)),
        _ => i64::from(i16::from_le_bytes(take_bytes(rest)?)),
    };
    let kind = match number {
        kind::DIRECT | kind::DIRECT_WINDOWLESS => SiteKind::Link(LinkPlace::Direct {
            distance: retry + u32::from(take_byte(rest)?),
            stub: take_u16(rest)?,
            windowless: take_windowless(number, rest)?,
        }),
        kind::SLOT => {
            let [low, middle, high] = take_bytes(rest)?;
            SiteKind::Link(LinkPlace::Slot {
                slot: u32::from_le_bytes([low, middle, high, 0]),
                stub: take_u16(rest)?,
            })
        }
        kind::MEMORY => {
            let packed = take_byte(rest)?;
            SiteKind::Memory {
                size: packed >> 1,
                write: packed & 1 != 0,
            }
        }
        kind::SYSTEM_READ => SiteKind::SystemRead {
            size: take_byte(rest)?,
            helper: take_u16(rest)? as u16,
        },
        kind::HELPER => SiteKind::Helper(take_u16(rest)? as u16),
        _ => unpack_plain(number, rest)?,
    };
    let mut take_if = |bit: u8| if has(bit) { take_byte(rest) } else { Some(0) };
    let esp = i32::from(take_if(HAS_ESP)? as i8);
    let after = match take_if(HAS_AFTER)? {
        distance if has(HAS_AFTER) => retry + u32::from(distance),
        _ => NO_AFTER,
    };
    let after_esp = esp + i32::from(take_if(HAS_AFTER_ESP)? as i8);
    let shadowed = match take_if(HAS_SHADOW)? {
        number if has(HAS_SHADOW) => shadow_of(number),
        _ => Shadow::None,
    };
    Some(Site {
        kind,
        rip: start.wrapping_add(rip as u64),
        esp,
        retry,
        after,
        after_esp,
        shadowed,
    })
}

/// Takes the data that only links of missed shared look-ups have.
fn take_windowless(number: u8, rest: &mut &[u8]) -> Option<Option<WindowMiss>> {
    if number == kind::DIRECT {
        return Some(None);
    }
    WindowMiss::from_bytes(take_bytes(rest)?).map(Some)
}

/// Unpacks a kind whose form is the same in wide sites.
fn unpack_plain(number: u8, rest: &mut &[u8]) -> Option<SiteKind> {
    Some(match number {
        kind::INDIRECT => SiteKind::Indirect,
        kind::LEVEL_CHANGED => SiteKind::LevelChanged,
        kind::FAR => SiteKind::Far,
        kind::SLOW => SiteKind::Slow,
        kind::VECTOR_LOAD => SiteKind::VectorLoad,
        kind::CONTINUE => SiteKind::Continue,
        kind::FAULT => SiteKind::Fault(Vector::from_number(take_byte(rest)?)?),
        _ => return None,
    })
}

#[cold]
fn unpack_wide(has_shadow: bool, rest: &mut &[u8], start: u64) -> Option<Site> {
    fn take_u32(rest: &mut &[u8]) -> Option<u32> {
        u32::try_from(take(rest)?).ok()
    }
    let number = take_byte(rest)?;
    let retry = take_u32(rest)?;
    let rip = start.wrapping_add(take_signed(rest)? as u64);
    let kind = match number {
        kind::DIRECT | kind::DIRECT_WINDOWLESS => SiteKind::Link(LinkPlace::Direct {
            distance: take_u32(rest)?,
            stub: take_u32(rest)?,
            windowless: take_windowless(number, rest)?,
        }),
        kind::SLOT => SiteKind::Link(LinkPlace::Slot {
            slot: take_u32(rest)?,
            stub: take_u32(rest)?,
        }),
        kind::MEMORY => SiteKind::Memory {
            size: take_byte(rest)?,
            write: take_byte(rest)? != 0,
        },
        kind::SYSTEM_READ => SiteKind::SystemRead {
            size: take_byte(rest)?,
            helper: u16::try_from(take(rest)?).ok()?,
        },
        kind::HELPER => SiteKind::Helper(u16::try_from(take(rest)?).ok()?),
        _ => unpack_plain(number, rest)?,
    };
    Some(Site {
        kind,
        rip,
        esp: i32::try_from(take_signed(rest)?).ok()?,
        retry,
        after: take_u32(rest)?,
        after_esp: i32::try_from(take_signed(rest)?).ok()?,
        shadowed: match take_byte(rest)? {
            number if has_shadow => shadow_of(number),
            _ => Shadow::None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::sites::SharedBytes;
    use tollgate_test_support::Random;

    fn random_kind(random: &mut Random) -> SiteKind {
        let number = |random: &mut Random| random.next_u64() as u32 >> random.below(32);
        match random.below(14) {
            0 => SiteKind::Link(LinkPlace::Direct {
                distance: number(random),
                stub: number(random),
                windowless: None,
            }),
            1 => {
                let place = random.below(128) as u8;
                let mut bytes = |most: usize| SharedBytes {
                    size: 1 + random.below(most) as u32,
                    write: random.below(2) == 0,
                };
                let (access, window) = (bytes(64), bytes(128));
                SiteKind::Link(LinkPlace::Direct {
                    distance: number(random),
                    stub: number(random),
                    windowless: WindowMiss::new(place, access, window),
                })
            }
            2 => SiteKind::Link(LinkPlace::Slot {
                slot: number(random),
                stub: number(random),
            }),
            3 => SiteKind::Indirect,
            4 => SiteKind::LevelChanged,
            5 => SiteKind::Far,
            6 | 7 => SiteKind::Memory {
                size: random.next_u64() as u8,
                write: random.below(2) == 0,
            },
            8 => SiteKind::SystemRead {
                size: random.next_u64() as u8,
                helper: random.next_u64() as u16,
            },
            9 => SiteKind::Slow,
            10 => SiteKind::Helper(random.next_u64() as u16),
            11 => SiteKind::VectorLoad,
            12 => SiteKind::Continue,
            _ => SiteKind::Fault(Vector::GeneralProtection),
        }
    }

    fn random_site(start: u64, random: &mut Random) -> Site {
        let esp = match random.below(3) {
            0 => 0,
            1 => random.below(200) as i32 - 100,
            _ => random.next_u64() as i32,
        };
        let retry = random.next_u64() as u32 >> random.below(32);
        let after = match random.below(3) {
            0 => NO_AFTER,
            1 => random.next_u64() as u32,
            _ => retry.saturating_add(random.below(300) as u32),
        };
        let number = random_kind(random);
        // Mostly near, as in real blocks.
        let kind = match number {
            SiteKind::Link(LinkPlace::Direct {
                stub, windowless, ..
            }) if random.below(2) == 0 => SiteKind::Link(LinkPlace::Direct {
                distance: retry.saturating_add(random.below(300) as u32),
                stub,
                windowless,
            }),
            other => other,
        };
        Site {
            kind,
            rip: match random.below(3) {
                0 => random.next_u64(),
                _ => start.wrapping_add(random.below(400) as u64),
            },
            esp,
            retry,
            after,
            after_esp: match random.below(2) {
                0 => esp,
                _ => random.next_u64() as i32,
            },
            shadowed: [Shadow::None, Shadow::Interrupts, Shadow::All][random.below(3)],
        }
    }

    fn packed(sites: &[Site], start: u64) -> Vec<u8> {
        let mut bytes = vec![0; sites.len() * LONGEST];
        let end = pack_sites(sites, start, &mut bytes, 0);
        bytes.truncate(end);
        bytes
    }

    #[test]
    fn what_is_packed_is_what_is_found() {
        let mut random = Random::new(29);
        for _ in 0..2000 {
            let start = random.next_u64();
            let count = random.below(20);
            let sites: Vec<Site> = (0..count)
                .map(|_| random_site(start, &mut random))
                .collect();
            let bytes = packed(&sites, start);
            let packed = PackedSites::new(&bytes, start);
            assert_eq!(packed.iter().collect::<Vec<_>>(), sites);
            for number in 0..=count {
                assert_eq!(packed.get(number), sites.get(number).copied());
            }
        }
    }

    #[test]
    fn most_sites_need_few_bytes() {
        let site = Site {
            kind: SiteKind::Memory {
                size: 8,
                write: true,
            },
            rip: 0xffff_ffff_8123_4010,
            esp: -8,
            retry: 180,
            after: 200,
            after_esp: -8,
            shadowed: Shadow::None,
        };
        let bytes = packed(&[site], 0xffff_ffff_8123_4000);
        assert!(bytes.len() <= 9, "{bytes:x?}");
    }
}
