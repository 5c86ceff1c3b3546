//! The list of all links between blocks, found from the source and from the target.
//!
//! Each link is stored once in an array, and two linked lists go through this array: the links of a
//! source block, which are few, and the links to a target block. The latter can be very many, so
//! that list is doubly linked and a link can be removed from its middle.

use crate::abi::sites::{BlockId, pack_site, unpack_site};

/// Index that stands for no link.
const NONE: u32 = u32::MAX;

/// A link, or a free place of the array.
#[derive(Clone, Copy)]
struct Link {
    /// The source block and its site, packed by [`pack_site`].
    from: u32,
    to: BlockId,
    /// The next link of the same source block, or the next free place.
    next_outgoing: u32,
    /// The next link to the same target, and the one before it in `previous_incoming`.
    next_incoming: u32,
    previous_incoming: u32,
}

/// The first link of a block and the first link to it.
#[derive(Clone, Copy)]
struct Ends {
    outgoing: u32,
    incoming: u32,
}

const NO_ENDS: Ends = Ends {
    outgoing: NONE,
    incoming: NONE,
};

/// The links between all blocks.
pub struct MadeLinks {
    links: Vec<Link>,
    first_free: u32,
    /// The ends of the lists of each block, indexed by block number.
    ends: Vec<Ends>,
}

impl Default for MadeLinks {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            first_free: NONE,
            ends: Vec::new(),
        }
    }
}

impl MadeLinks {
    fn ends(&self, block: BlockId) -> Ends {
        self.ends.get(block.0 as usize).copied().unwrap_or(NO_ENDS)
    }

    fn ends_mut(&mut self, block: BlockId) -> &mut Ends {
        let index = block.0 as usize;
        if self.ends.len() <= index {
            self.ends.resize(index + 1, NO_ENDS);
        }
        &mut self.ends[index]
    }

    /// Notes that the link of a site leads to the block `to` from now on, and to no other block.
    pub fn list(&mut self, from: BlockId, site: u16, to: BlockId) {
        let packed = pack_site(from, usize::from(site));
        let known = self.numbers(from).find(|&at| self.link(at).from == packed);
        let at = match known {
            Some(at) => {
                self.leave_target(at);
                at
            }
            None => {
                let first = self.ends(from).outgoing;
                let at = self.take_place(Link {
                    from: packed,
                    to,
                    next_outgoing: first,
                    next_incoming: NONE,
                    previous_incoming: NONE,
                });
                self.ends_mut(from).outgoing = at;
                at
            }
        };
        let first = std::mem::replace(&mut self.ends_mut(to).incoming, at);
        if let Some(first) = self.links.get_mut(first as usize) {
            first.previous_incoming = at;
        }
        let link = &mut self.links[at as usize];
        link.to = to;
        link.next_incoming = first;
        link.previous_incoming = NONE;
    }

    /// Whether the link of a site was made.
    pub fn is_made(&self, from: BlockId, site: usize) -> bool {
        let packed = pack_site(from, site);
        self.numbers(from).any(|at| self.link(at).from == packed)
    }

    /// The links of a block: the site of each and its target.
    pub fn outgoing(&self, from: BlockId) -> impl Iterator<Item = (u16, BlockId)> + '_ {
        self.numbers(from).map(|at| {
            let link = self.link(at);
            (unpack_site(link.from).1 as u16, link.to)
        })
    }

    /// The links to a block: the source block and the site of each.
    pub fn incoming(&self, to: BlockId) -> impl Iterator<Item = (BlockId, u16)> + '_ {
        let mut next = self.ends(to).incoming;
        std::iter::from_fn(move || {
            let link = self.links.get(next as usize)?;
            next = link.next_incoming;
            let (from, site) = unpack_site(link.from);
            Some((from, site as u16))
        })
    }

    /// Removes the links to a block and returns their source blocks and sites.
    pub fn take_incoming(&mut self, to: BlockId) -> Vec<(BlockId, u16)> {
        let mut taken = Vec::new();
        let mut next = self.ends(to).incoming;
        while let Some(&link) = self.links.get(next as usize) {
            let (from, site) = unpack_site(link.from);
            taken.push((from, site as u16));
            self.leave_source(next, from);
            self.free(next);
            next = link.next_incoming;
        }
        if !taken.is_empty() {
            self.ends_mut(to).incoming = NONE;
        }
        taken
    }

    /// Removes the links of a block and returns their sites.
    pub fn take_outgoing(&mut self, from: BlockId) -> Vec<u16> {
        let mut taken = Vec::new();
        let mut next = self.ends(from).outgoing;
        while let Some(&link) = self.links.get(next as usize) {
            taken.push(unpack_site(link.from).1 as u16);
            self.leave_target(next);
            self.free(next);
            next = link.next_outgoing;
        }
        if !taken.is_empty() {
            self.ends_mut(from).outgoing = NONE;
        }
        taken
    }

    fn link(&self, at: u32) -> &Link {
        &self.links[at as usize]
    }

    /// The indexes of a block's links in the array.
    fn numbers(&self, from: BlockId) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.ends(from).outgoing;
        std::iter::from_fn(move || {
            let at = next;
            next = self.links.get(at as usize)?.next_outgoing;
            Some(at)
        })
    }

    fn take_place(&mut self, link: Link) -> u32 {
        let at = self.first_free;
        if let Some(place) = self.links.get_mut(at as usize) {
            self.first_free = place.next_outgoing;
            *place = link;
            return at;
        }
        self.links.push(link);
        self.links.len() as u32 - 1
    }

    fn free(&mut self, at: u32) {
        self.links[at as usize].next_outgoing = self.first_free;
        self.first_free = at;
    }

    /// Removes a link from the list of its target.
    fn leave_target(&mut self, at: u32) {
        let link = *self.link(at);
        match self.links.get_mut(link.previous_incoming as usize) {
            Some(previous) => previous.next_incoming = link.next_incoming,
            None => self.ends_mut(link.to).incoming = link.next_incoming,
        }
        if let Some(next) = self.links.get_mut(link.next_incoming as usize) {
            next.previous_incoming = link.previous_incoming;
        }
    }

    /// Removes a link from the list of its source block.
    fn leave_source(&mut self, at: u32, from: BlockId) {
        let next = self.link(at).next_outgoing;
        let previous = (self.numbers(from)).find(|&other| self.link(other).next_outgoing == at);
        match previous {
            Some(previous) => self.links[previous as usize].next_outgoing = next,
            None => self.ends_mut(from).outgoing = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use tollgate_test_support::Random;

    /// Compares the lists with a map from block and site to the target.
    #[test]
    fn each_link_is_listed_at_both_ends() {
        let mut random = Random::new(31);
        let mut made = MadeLinks::default();
        let mut model: BTreeMap<(BlockId, u16), BlockId> = BTreeMap::new();
        let mut most = 0;
        for _ in 0..20_000 {
            let block = BlockId(random.below(24) as u32);
            match random.below(12) {
                0 => {
                    let taken: BTreeSet<_> = made.take_incoming(block).into_iter().collect();
                    let leads_here = |(from, to): (_, &BlockId)| (*to == block).then_some(from);
                    let expected = model.iter().map(|(&from, to)| (from, to));
                    let expected: BTreeSet<_> = expected.filter_map(leads_here).collect();
                    assert_eq!(taken, expected);
                    model.retain(|_, to| *to != block);
                }
                1 => {
                    let taken: BTreeSet<_> = made.take_outgoing(block).into_iter().collect();
                    let of_block = model.keys().filter(|(from, _)| *from == block);
                    let expected: BTreeSet<_> = of_block.map(|&(_, site)| site).collect();
                    assert_eq!(taken, expected);
                    model.retain(|(from, _), _| *from != block);
                }
                _ => {
                    let (site, to) = (random.below(4) as u16, BlockId(random.below(24) as u32));
                    made.list(block, site, to);
                    model.insert((block, site), to);
                }
            }
            most = most.max(model.len());
            for number in 0..25 {
                let block = BlockId(number);
                let outgoing: BTreeSet<_> = made.outgoing(block).collect();
                let of_block = model.iter().filter(|((from, _), _)| *from == block);
                let expected: BTreeSet<_> = of_block.map(|(&(_, site), &to)| (site, to)).collect();
                assert_eq!(outgoing, expected);
                assert_eq!(made.outgoing(block).count(), expected.len());
                let incoming: BTreeSet<_> = made.incoming(block).collect();
                let leads_here = model.iter().filter(|(_, to)| **to == block);
                let expected: BTreeSet<_> = leads_here.map(|(&from, _)| from).collect();
                assert_eq!(incoming, expected);
                for site in 0..4 {
                    let is_made = model.contains_key(&(block, site as u16));
                    assert_eq!(made.is_made(block, site), is_made);
                }
            }
        }
        // Free places are used again, so the array never grows beyond the largest number of links.
        assert_eq!(made.links.len(), most);
    }
}
