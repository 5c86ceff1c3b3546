//! The bytes of stored translations: header, index, and the records of pages.

use super::key::Key;
use super::records::{Index, PageEntry, PageRecord};
use crate::abi::link_layout::MAX_SLOTS;
use crate::abi::sites::MAX_BLOCKS;
use crate::policy::mode::ModeFlags;
use rustc_hash::FxHasher;
use std::fmt;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;

/// The first bytes of every description.
const MAGIC: [u8; 16] = *b"\x89tollgate code\r\n";
/// The version of the layout. Another one is refused.
const VERSION: u32 = 3;
/// The size of the header in bytes.
const HEADER_BYTES: usize = 64;
/// The most modes that a description may have.
const MOST_MODES: usize = 1 << 12;

/// Why stored translations cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// The bytes do not begin like stored translations.
    NotStored,
    /// They have a layout of another version.
    Version(u32),
    /// They were made by another build, for another processor, or with other settings.
    OtherIdentity,
    /// A part is damaged; its name.
    Damaged(&'static str),
}

impl fmt::Display for Unusable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStored => write!(formatter, "it does not begin like stored translations"),
            Self::Version(version) => write!(
                formatter,
                "it has version {version} of the layout, and this program reads {VERSION}"
            ),
            Self::OtherIdentity => {
                write!(
                    formatter,
                    "it belongs to another build, processor or setting"
                )
            }
            Self::Damaged(part) => write!(formatter, "its {part} is damaged"),
        }
    }
}

impl std::error::Error for Unusable {}

/// Stored translations whose index has been read and checked. The records of pages are read when
/// they are needed.
pub struct StoredTranslations {
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    /// Where the records begin.
    records: usize,
    index: Index,
    /// The key that has signed everything; without one, nothing is known of who wrote it.
    key: Option<Key>,
    /// The numbers of pages in the index, ordered by physical page.
    by_physical: Vec<(u64, u32)>,
    /// The numbers of pages in the index, ordered by the hash of their contents.
    by_contents: Vec<(u64, u32)>,
}

impl fmt::Debug for StoredTranslations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (formatter.debug_struct("StoredTranslations"))
            .field("pages", &self.index.pages.len())
            .finish_non_exhaustive()
    }
}

impl StoredTranslations {
    /// Reads the index of stored translations, which must have been made under this `identity`. If
    /// they are not signed with `key`, all blocks must pass the verifier before they run.
    ///
    /// `bytes` must return the same bytes each time, at the same place, unchanged: blocks keep
    /// references to them.
    ///
    /// # Errors
    /// [`Unusable`]: the bytes are something else, damaged, or of another version or identity.
    pub fn open(
        bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
        identity: u64,
        key: Option<Key>,
    ) -> Result<Self, Unusable> {
        let all = (*bytes).as_ref();
        let header = all.first_chunk::<HEADER_BYTES>();
        let header = header.filter(|header| header[..16] == MAGIC);
        let header = header.ok_or(Unusable::NotStored)?;
        let mut words = header[16..].chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().unwrap_or_default();
            u64::from_le_bytes(word)
        });
        let [version, found, length, sums] = [(); 4].map(|()| words.next().unwrap_or_default());
        if crc32fast::hash(&header[..40]) != (sums >> 32) as u32 {
            return Err(Unusable::Damaged("header"));
        }
        if version != u64::from(VERSION) {
            return Err(Unusable::Version(version as u32));
        }
        if found != identity {
            return Err(Unusable::OtherIdentity);
        }
        let records = usize::try_from(length).ok();
        let records = records.and_then(|length| HEADER_BYTES.checked_add(length));
        let text = records.and_then(|records| all.get(HEADER_BYTES..records));
        let damaged = Unusable::Damaged("index");
        let (text, records) = text.zip(records).ok_or(damaged)?;
        if crc32fast::hash(text) != sums as u32 {
            return Err(damaged);
        }
        let signed = header.last_chunk().copied().map(u128::from_le_bytes);
        let key = key.filter(|key| Some(index_tag(key, header, text)) == signed);
        let index: Index = postcard::from_bytes(text).map_err(|_| damaged)?;
        let room = (all.len() - records) as u64;
        let is_inside = |page: &PageEntry| {
            let end = page.offset.checked_add(page.length.into());
            end.is_some_and(|end| end <= room)
        };
        let [kernels, programs] = index.next_slots.map(|slot| slot as usize);
        let is_sound = index.pages.iter().all(is_inside)
            && index.block_numbers as usize <= MAX_BLOCKS / 2
            && (MAX_SLOTS..=MAX_SLOTS + MAX_SLOTS / 2).contains(&kernels)
            && programs <= MAX_SLOTS / 2
            && index.modes.len() <= MOST_MODES
            && (index.modes.iter()).all(|mode| ModeFlags::all().contains(mode.flags));
        if !is_sound {
            return Err(damaged);
        }
        let sorted = |what: fn(&PageEntry) -> u64| {
            let numbers = (0..).zip(&index.pages);
            let mut all: Vec<(u64, u32)> = numbers.map(|(at, page)| (what(page), at)).collect();
            all.sort_unstable();
            all
        };
        Ok(Self {
            records,
            by_physical: sorted(|page| page.physical_page),
            by_contents: sorted(|page| page.contents),
            index,
            key,
            bytes,
        })
    }

    /// Whether everything was signed with the key with which it was opened.
    pub fn is_signed(&self) -> bool {
        self.key.is_some()
    }

    /// The identity in the header of a file with stored translations, which need not be sound.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn identity_in(file: &File) -> io::Result<u64> {
        let mut identity = [0; 8];
        // It follows the first bytes and the version.
        file.read_exact_at(&mut identity, 24)?;
        Ok(u64::from_le_bytes(identity))
    }

    /// Everything except the pages themselves.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What the index says of a page; `None` if there is no such page.
    pub fn entry(&self, page: usize) -> Option<&PageEntry> {
        self.index.pages.get(page)
    }

    /// The number of pages.
    pub fn page_count(&self) -> usize {
        self.index.pages.len()
    }

    /// The size in bytes of everything.
    pub fn size_bytes(&self) -> usize {
        (*self.bytes).as_ref().len()
    }

    /// The bytes of a page's record, unchecked; empty if there is no such page.
    pub fn record_bytes(&self, page: usize) -> &[u8] {
        let Some(entry) = self.index.pages.get(page) else {
            return &[];
        };
        let start = self.records + entry.offset as usize;
        let bytes = (*self.bytes).as_ref();
        bytes
            .get(start..start + entry.length as usize)
            .unwrap_or_default()
    }

    /// The record of a page; `None` if it is damaged.
    pub fn record(&self, page: usize) -> Option<PageRecord<'_>> {
        let bytes = self.record_bytes(page);
        let entry = self.index.pages.get(page)?;
        let is_whole = match &self.key {
            Some(key) => key.tag(bytes) == entry.tag,
            None => crc32fast::hash(bytes) == entry.checksum,
        };
        is_whole.then(|| postcard::from_bytes(bytes).ok())?
    }

    /// The pages that were made from the physical page of this number.
    pub fn pages_at(&self, physical_page: u64) -> impl Iterator<Item = usize> {
        numbers_of(&self.by_physical, physical_page)
    }

    /// The pages whose contents have this hash.
    pub fn pages_with(&self, contents: u64) -> impl Iterator<Item = usize> {
        numbers_of(&self.by_contents, contents)
    }
}

fn numbers_of(sorted: &[(u64, u32)], wanted: u64) -> impl Iterator<Item = usize> {
    let start = sorted.partition_point(|&(key, _)| key < wanted);
    let rest = sorted[start..].iter();
    rest.take_while(move |&&(key, _)| key == wanted)
        .map(|&(_, number)| number as usize)
}

/// A hash of a page's contents.
pub fn contents_hash(page: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(page);
    hasher.finish()
}

/// The tag of a header, up to the place of the tag itself, and an index.
fn index_tag(key: &Key, header: &[u8; HEADER_BYTES], index: &[u8]) -> u128 {
    key.tag(&[&header[..48], index].concat())
}

/// Puts stored translations together.
#[derive(Default)]
pub struct Writer {
    pages: Vec<PageEntry>,
    records: Vec<u8>,
    key: Option<Key>,
}

impl Writer {
    /// Puts stored translations together that are signed with a key, if there is one.
    pub fn new(key: Option<Key>) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// Adds a page: the physical page that it was made from, the hash of its contents, and its
    /// record.
    pub fn add(&mut self, physical_page: u64, contents: u64, record: &PageRecord<'_>) {
        let Ok(bytes) = postcard::to_allocvec(record) else {
            return;
        };
        let entry = PageEntry {
            physical_page,
            contents,
            begins: record.begins(),
            ..PageEntry::default()
        };
        self.add_bytes(&entry, &bytes);
    }

    /// Adds a page of other stored translations as it is.
    pub fn copy(&mut self, from: &StoredTranslations, page: usize) {
        if let Some(entry) = from.index.pages.get(page) {
            let bytes = from.record_bytes(page);
            self.add_bytes(entry, bytes);
        }
    }

    /// Adds a page whose record consists of these bytes. What `entry` says of the page is right;
    /// what it says of the record is replaced.
    pub fn add_bytes(&mut self, entry: &PageEntry, bytes: &[u8]) {
        let Ok(length) = u32::try_from(bytes.len()) else {
            return;
        };
        self.pages.push(PageEntry {
            offset: self.records.len() as u64,
            length,
            checksum: crc32fast::hash(bytes),
            tag: self.key.map_or(0, |key| key.tag(bytes)),
            ..*entry
        });
        self.records.extend_from_slice(bytes);
    }

    /// Completes the description. The pages of `index` are replaced by those that were added.
    pub fn finish(self, mut index: Index, identity: u64) -> Vec<u8> {
        index.pages = self.pages;
        let text = postcard::to_allocvec(&index).unwrap_or_default();
        let mut all = Vec::with_capacity(HEADER_BYTES + text.len() + self.records.len());
        all.extend_from_slice(&MAGIC);
        for word in [u64::from(VERSION), identity, text.len() as u64] {
            all.extend_from_slice(&word.to_le_bytes());
        }
        let sum = crc32fast::hash(&all);
        all.extend_from_slice(&crc32fast::hash(&text).to_le_bytes());
        all.extend_from_slice(&sum.to_le_bytes());
        all.resize(HEADER_BYTES, 0);
        let header = all.first_chunk().zip(self.key);
        let tag = header.map(|(header, key)| index_tag(&key, header, &text));
        all[48..].copy_from_slice(&tag.unwrap_or_default().to_le_bytes());
        all.extend_from_slice(&text);
        all.extend_from_slice(&self.records);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::records::LinkRecord;

    fn index() -> Index {
        Index {
            modes: Vec::new(),
            block_numbers: 3,
            next_slots: [MAX_SLOTS as u32 + 5, 7],
            translated: 1,
            pages: Vec::new(),
        }
    }

    const KEY: Key = Key([7; 16]);

    fn written(key: Option<Key>) -> Vec<u8> {
        let mut writer = Writer::new(key);
        for page in 0..3 {
            let record = PageRecord {
                link_pages: vec![page],
                links: vec![LinkRecord {
                    from: page as u32,
                    site: 2,
                    to: 3,
                }],
                ..PageRecord::default()
            };
            writer.add(page % 2, 77 + page, &record);
        }
        writer.finish(index(), 9)
    }

    #[test]
    fn what_is_written_is_read() {
        let stored = StoredTranslations::open(Box::new(written(None)), 9, None).unwrap();
        assert_eq!(stored.index().next_slots, index().next_slots);
        assert_eq!(stored.pages_at(0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(stored.pages_at(1).collect::<Vec<_>>(), [1]);
        assert_eq!(stored.pages_with(79).collect::<Vec<_>>(), [2]);
        assert_eq!(stored.pages_with(80).count(), 0);
        for page in 0..3 {
            let record = stored.record(page).unwrap();
            assert_eq!(record.link_pages, [page as u64]);
        }
        assert!(stored.record(3).is_none());
        let mut copy = Writer::default();
        copy.copy(&stored, 1);
        let copied = StoredTranslations::open(Box::new(copy.finish(index(), 9)), 9, None).unwrap();
        assert_eq!(copied.record(0).unwrap().link_pages, [1]);
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        for key in [None, Some(KEY)] {
            let whole = written(key);
            let open = |bytes: Vec<u8>| StoredTranslations::open(Box::new(bytes), 9, key);
            assert_eq!(
                StoredTranslations::open(Box::new(whole.clone()), 8, key).unwrap_err(),
                Unusable::OtherIdentity
            );
            assert_eq!(open(whole.clone()).unwrap().is_signed(), key.is_some());
            for length in 0..whole.len() {
                if let Ok(stored) = open(whole[..length].to_vec()) {
                    panic!("{length} bytes of {} are enough: {stored:?}", whole.len());
                }
            }
            for at in (0..whole.len()).filter(|at| !(48..64).contains(at)) {
                let mut changed = whole.clone();
                changed[at] ^= 0x10;
                let opened = open(changed);
                let all = opened.map(|stored| (0..3).all(|page| stored.record(page).is_some()));
                assert_ne!(all, Ok(true), "the change at {at} is not seen");
            }
        }
    }

    /// No signature can be made without the key, and what was signed and changed counts as unsigned.
    #[test]
    fn only_the_key_signs() {
        let open = |bytes: Vec<u8>| StoredTranslations::open(Box::new(bytes), 9, Some(KEY));
        assert!(!open(written(None)).unwrap().is_signed());
        assert!(!open(written(Some(Key([8; 16])))).unwrap().is_signed());
        for at in 48..64 {
            let mut changed = written(Some(KEY));
            changed[at] ^= 1;
            assert!(!open(changed).unwrap().is_signed());
        }
    }
}
