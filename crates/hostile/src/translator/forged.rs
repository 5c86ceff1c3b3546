//! Hostile input for stored translations: those of a guest with modifications anywhere, whose
//! checksums are right again.
//!
//! The first bytes of an input say what is modified; the rest is a guest, as for the translator.
//! The translations of its first run are modified, and it runs again with them. What the guest
//! computes then is not checked, since the translations stand for other code. But the verifier must
//! have refused whatever could reach the monitor.

use super::guest::Guest;
use super::platform::Noise;
use super::{CODE_CACHE_BYTES, RAM_BYTES};
use crate::canary;
use crate::confined::as_processor;
use crate::host_state::HostState;
use crate::input::Input;
use tollgate_engine::stored::StoredTranslations;
use tollgate_engine::stored::file::Writer;
use tollgate_memory::GuestMemory;
use tollgate_monitor::Vcpu;

/// The identity of the translations, which every run has.
const IDENTITY: u64 = 5;
/// Maximum number of modifications.
const MOST_EDITS: u8 = 8;

/// A modification of the records or of the index: which record, where in it, and the new value.
struct Edit {
    record: u8,
    place: u16,
    what: u8,
    value: u8,
}

impl Edit {
    fn of(input: &mut Input<'_>) -> Self {
        Self {
            record: input.byte(),
            place: input.word(),
            what: input.byte(),
            value: input.byte(),
        }
    }

    fn change(&self, bytes: &mut Vec<u8>) {
        let Some(place) = usize::from(self.place).checked_rem(bytes.len()) else {
            return;
        };
        match self.what % 4 {
            0 => bytes[place] = self.value,
            1 => bytes[place] ^= 1 << (self.value % 8),
            2 => bytes.insert(place, self.value),
            _ => {
                bytes.remove(place);
            }
        }
    }
}

/// Runs a guest, modifies its translations and runs it again, for some milliseconds at most.
///
/// # Panics
///
/// Panics if the monitor breaks a promise.
pub fn run(data: &[u8]) {
    canary::place();
    let mut input = Input::new(data);
    let count = input.byte() % MOST_EDITS;
    let edits: Vec<Edit> = (0..count).map(|_| Edit::of(&mut input)).collect();
    let guest = Guest::of(&mut input);
    let code = input.rest();
    let run_with = |stored: Option<StoredTranslations>| {
        let mut memory = GuestMemory::new(RAM_BYTES).expect("guest memory");
        let state = guest.prepare(code, &mut memory);
        let mut noise = Noise::new(guest.noise);
        let mut vcpu = Vcpu::new(state, memory, CODE_CACHE_BYTES, true).expect("a vCPU");
        if let Some(stored) = stored {
            vcpu.use_stored_translations(stored);
        }
        as_processor(|| {
            let host = HostState::now();
            vcpu.run(&mut noise);
            assert_eq!(HostState::now(), host, "the host's own settings");
        });
        vcpu.store_translations(IDENTITY, None)
    };
    let Some(sound) = run_with(None) else { return };
    let sound =
        StoredTranslations::open(Box::new(sound), IDENTITY, None).expect("sound translations");
    let mut index = sound.index().clone();
    let mut writer = Writer::default();
    for page in 0..sound.page_count() {
        let mut record = sound.record_bytes(page).to_vec();
        let of_record = |edit: &&Edit| usize::from(edit.record) == page;
        edits
            .iter()
            .filter(of_record)
            .for_each(|edit| edit.change(&mut record));
        writer.add_bytes(&index.pages[page], &record);
    }
    for edit in edits.iter().filter(|edit| edit.record == u8::MAX) {
        match edit.what % 4 {
            0 => index.block_numbers = edit.place.into(),
            1 => index.next_slots[0] = index.next_slots[0].wrapping_add(edit.place.into()),
            2 => index.next_slots[1] = edit.place.into(),
            _ => index.modes.truncate(edit.value.into()),
        }
    }
    let forged = writer.finish(index, IDENTITY);
    if let Ok(forged) = StoredTranslations::open(Box::new(forged), IDENTITY, None) {
        run_with(Some(forged));
    }
    canary::check();
}

/// The translator's seeds, with modifications before them.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let edit = |(number, (name, guest)): (usize, (String, Vec<u8>))| {
        let place = (number * 37 % 4096) as u16;
        let [low, high] = place.to_le_bytes();
        let edits = [1, (number % 3) as u8, low, high, (number % 2) as u8, 3];
        (name, [&edits[..], &guest].concat())
    };
    super::seeds().into_iter().enumerate().map(edit).collect()
}
