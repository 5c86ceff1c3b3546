use super::*;
use tollgate_test_support::Random;

fn code(page: u64, lines: u64) -> Source {
    Source {
        page,
        lines,
        holds: Holds::Code,
    }
}

fn tables(page: u64, lines: u64) -> Source {
    Source {
        page,
        lines,
        holds: Holds::Tables,
    }
}

fn written(decode_cache: &mut DecodeCache<u64, u64>, page: u64, lines: u64) -> (u64, Dropped) {
    let mut dropped = Dropped::default();
    let kept = decode_cache.write(page, lines, &mut dropped);
    (kept, dropped)
}

#[test]
fn what_was_entered_is_found_until_a_line_is_written_that_it_was_read_from() {
    let mut decode_cache = DecodeCache::default();
    assert_eq!(decode_cache.look_up(&1), Found::Nothing);
    assert!(!decode_cache.enter(1, 10, &[code(5, 0b11), tables(6, 0b100)]));
    assert!(!decode_cache.enter(2, 20, &[code(5, 0b110)]));
    assert_eq!(decode_cache.look_up(&1), Found::Hit(10));
    let none = Dropped::default();
    assert_eq!(written(&mut decode_cache, 5, 0b1000), (0b111, none));
    assert_eq!(written(&mut decode_cache, 7, u64::MAX), (0, none));
    let one = Dropped { tables: 1, ..none };
    assert_eq!(written(&mut decode_cache, 6, 0b100), (0, one));
    assert_eq!(decode_cache.look_up(&1), Found::Void);
    assert_eq!(decode_cache.look_up(&2), Found::Hit(20));
    // The note of the first entry for page 5 no longer counts.
    assert_eq!(written(&mut decode_cache, 5, 1), (0b110, none));
    let one = Dropped { code: 1, ..none };
    assert_eq!(written(&mut decode_cache, 5, 0b100), (0, one));
    assert_eq!(decode_cache.look_up(&2), Found::Void);
}

#[test]
fn an_entry_made_anew_does_not_go_with_what_the_old_one_was_read_from() {
    let mut decode_cache = DecodeCache::default();
    decode_cache.enter(1, 10, &[code(5, 1)]);
    decode_cache.enter(1, 11, &[code(6, 1)]);
    assert_eq!(decode_cache.look_up(&1), Found::Hit(11));
    assert_eq!(written(&mut decode_cache, 5, 1), (0, Dropped::default()));
    assert_eq!(decode_cache.look_up(&1), Found::Hit(11));
}

#[test]
fn there_are_not_more_entries_than_places_and_the_rest_is_told_of() {
    let mut decode_cache = DecodeCache::default();
    let replaced = (0..3 * ENTRIES as u64)
        .filter(|&key| decode_cache.enter(key, key, &[code(key, 1)]))
        .count();
    let found = (0..3 * ENTRIES as u64)
        .filter(|key| decode_cache.look_up(key) == Found::Hit(*key))
        .count();
    assert_eq!(found + replaced, 3 * ENTRIES);
    assert!(found > ENTRIES / 2, "{found}: the hash is bad");
    assert_eq!(decode_cache.clear(|_| {}), found as u64);
    assert_eq!(decode_cache.look_up(&1), Found::Nothing);
}

/// Keys whose entries have the same set of places.
fn colliding(decode_cache: &DecodeCache<u64, u64>, count: usize) -> Vec<u64> {
    let set = decode_cache.set_of(&0);
    let keys = (0..).filter(|key| decode_cache.set_of(key) == set);
    keys.take(count).collect()
}

#[test]
fn colliding_keys_are_distinguished_and_one_too_many_replaces_one() {
    let mut decode_cache = DecodeCache::default();
    let keys = colliding(&decode_cache, WAYS + 1);
    for &key in &keys[..WAYS] {
        assert!(!decode_cache.enter(key, key + 1, &[code(5, 1)]));
    }
    assert_eq!(decode_cache.look_up(&keys[WAYS]), Found::Nothing);
    for key in &keys[..WAYS] {
        assert_eq!(decode_cache.look_up(key), Found::Hit(key + 1));
    }
    assert!(decode_cache.enter(keys[WAYS], 0, &[code(6, 1)]));
    let is_found = |key: &&u64| matches!(decode_cache.look_up(key), Found::Hit(_));
    assert_eq!(keys.iter().filter(is_found).count(), WAYS);
    assert_eq!(decode_cache.look_up(&keys[WAYS]), Found::Hit(0));
    // The entry that was replaced leaves a note, which drops nothing.
    let (kept, dropped) = written(&mut decode_cache, 5, 1);
    assert_eq!((kept, dropped.code), (0, WAYS as u64 - 1));
    assert_eq!(decode_cache.look_up(&keys[WAYS]), Found::Hit(0));
}

#[test]
fn a_void_entry_gives_its_place_before_a_valid_one() {
    let mut decode_cache = DecodeCache::default();
    let keys = colliding(&decode_cache, WAYS + 1);
    for &key in &keys[..WAYS] {
        decode_cache.enter(key, key, &[code(key, 1)]);
    }
    written(&mut decode_cache, keys[2], 1);
    assert!(!decode_cache.enter(keys[WAYS], 0, &[code(5, 1)]));
    assert_eq!(decode_cache.look_up(&keys[2]), Found::Nothing);
    for key in [keys[0], keys[1], keys[3]] {
        assert_eq!(decode_cache.look_up(&key), Found::Hit(key));
    }
}

#[test]
fn notes_of_what_is_void_are_collected() {
    let mut decode_cache = DecodeCache::default();
    decode_cache.enter(1, 1, &[code(5, 0b1), tables(8, 0b1)]);
    decode_cache.enter(2, 2, &[code(5, 0b10), tables(8, 0b1000)]);
    written(&mut decode_cache, 5, 1);
    let mut changed = Vec::new();
    decode_cache.collect(|page, lines| changed.push((page, lines)));
    assert_eq!(changed, [(8, 0b1000)]);
    assert_eq!(decode_cache.noted, 2);
    assert!(!decode_cache.is_crowded());
}

/// Compares the decode cache with a list: it must find exactly the last entry under a key, as long as
/// nothing that the entry was read from has been written since.
#[test]
fn whatever_is_done_nothing_stale_is_found() {
    struct Known {
        value: u64,
        sources: Vec<Source>,
        is_void: bool,
    }
    let mut random = Random::new(0x1ca);
    for _ in 0..20 {
        let mut decode_cache = DecodeCache::default();
        let mut known: FxHashMap<u64, Known> = FxHashMap::default();
        let mut totals = (0, Dropped::default());
        for value in 0..20_000 {
            let key = random.below(6000) as u64;
            match random.below(10) {
                0..4 => {
                    let sources: Vec<_> = (0..1 + random.below(5))
                        .map(|number| {
                            let page = random.below(40) as u64;
                            let lines = random.next_u64() & random.next_u64();
                            match number {
                                0 => code(page, lines | 1),
                                _ => tables(page, lines | 1),
                            }
                        })
                        .collect();
                    totals.0 += u64::from(decode_cache.enter(key, value, &sources));
                    let is_void = false;
                    known.insert(
                        key,
                        Known {
                            value,
                            sources,
                            is_void,
                        },
                    );
                }
                4 => {
                    let (page, lines) = (random.below(40) as u64, 1 << random.below(64));
                    let kept = decode_cache.write(page, lines, &mut totals.1);
                    assert_eq!(kept & lines, 0);
                    for known in known.values_mut() {
                        let is_hit =
                            |source: &Source| source.page == page && source.lines & lines != 0;
                        known.is_void |= known.sources.iter().any(is_hit);
                    }
                }
                5 if random.below(100) == 0 => decode_cache.collect(|_, _| {}),
                _ => match (decode_cache.look_up(&key), known.get(&key)) {
                    (Found::Hit(found), Some(known)) => {
                        assert!(!known.is_void && known.value == found);
                    }
                    (Found::Hit(_), None) => panic!("found what was never entered"),
                    (Found::Void, known) => assert!(known.is_some_and(|known| known.is_void)),
                    (Found::Nothing, _) => {}
                },
            }
        }
        let alive = known
            .keys()
            .filter(|key| matches!(decode_cache.look_up(key), Found::Hit(_)))
            .count();
        assert!(alive > 0 && totals.1.code > 0 && totals.1.tables > 0);
    }
}
