//! What the verifier knows of registers: where the value of each comes from, as far as that decides
//! whether an access or a jump is allowed.
//!
//! Values have numbers: two registers with the same number hold the same 64 bits.

use crate::abi::memos::level_change::LevelChangeKind;
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;

/// The register that holds the index of a table's entry.
const R9: usize = 9;

/// The number of a value.
pub(super) type Number = u32;

/// The table in which an indirect branch looks its target up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    /// The table at this displacement from the start of the link tables.
    At(i32),
    /// The table that belongs to a change of the privilege level.
    Level(LevelChangeKind),
}

/// What is known of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Any value: nothing is known of it.
    Any,
    /// A value below 2^32.
    Narrow,
    /// A value below 2^16.
    Word,
    /// A word times 65536.
    HighWord,
    /// The sum of a narrow value and a high word.
    FarPointer,
    /// A constant with this value.
    Constant(u64),
    /// The value `of` plus a number.
    Sum {
        of: Number,
        added: i64,
        narrow: bool,
    },
    /// The number of the page that contains the linear address `of`, which is `end.0` plus `end.1`.
    /// `signed` says whether pages are numbered as in the long software TLB.
    Page {
        of: Number,
        end: Option<(Number, i64)>,
        signed: bool,
        /// The address is the value with this number plus this distance.
        near: (Number, i64),
    },
    /// The number of the software TLB's slot for an access at `of`.
    Slot { of: Number, size: u32, signed: bool },
    /// The index in the root of the long software TLB for the address `of`, which is the value
    /// `near.0` plus `near.1`.
    Part { of: Number, near: (Number, i64) },
    /// The pointer to the table of slots that was read from the root for the address `of`.
    Root { of: Number },
    /// The content of a slot: the host address minus the linear address `of`, or zero unless `hit`.
    Delta {
        of: Number,
        size: u32,
        write: bool,
        hit: bool,
    },
    /// The entry of the table of shadow windows for the part of a linear address: of the value with
    /// this number plus this distance.
    WindowDelta { of: (Number, i64) },
    /// The delta of the shadow window for a view of a guest that is not in IA-32e mode.
    NarrowDelta,
    /// The entry of the table of shadow windows for this part.
    WindowDeltaOfPart(i64),
    /// The host address of `size` bytes of guest memory.
    Checked { size: u32, write: bool },
    /// Twice a word: the index of an entry in the table of far transfers.
    FarIndex,
    /// The number of an entry in a table of indirect branches.
    IndexBits,
    /// Four times the number of an entry in a table of indirect branches.
    Index,
    /// The slide of the target of the entry at this index of a table.
    CodeSlide { index: Number, table: Table },
    /// The negated slide of such a target.
    NegatedCodeSlide { index: Number, table: Table },
    /// The current slide, whose value had the number `active`, minus the target's slide.
    CodeSlideSum {
        index: Number,
        table: Table,
        active: Number,
    },
    /// Where the table of a change of the privilege level begins.
    LevelTable(LevelChangeKind),
    /// The index, from the start of all tables, of an entry in the table of such a change.
    LevelIndex(LevelChangeKind),
    /// The constant part of the tag of such an entry, negated; the target is the other part.
    LevelTag(LevelChangeKind),
    /// The sum of that constant part and the target.
    LevelSum(LevelChangeKind),
    /// The sum of the tag of the entry at `index` in a table, a constant, and `targets` times the
    /// target.
    Tag {
        index: Number,
        table: Table,
        constant: u64,
        targets: u8,
    },
    /// The host address of this offset in the block.
    Address(u64),
    /// A value that is zero if the guest's vector registers are loaded.
    VectorsOff,
}

/// A value: its number, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) number: Number,
    pub(super) kind: Kind,
    /// The value is that of this number plus this distance.
    pub(super) near: (Number, i64),
}

impl Value {
    /// The distance of this value, plus `added`, from the address that a shadow window's delta was
    /// looked up for. `None` if the distance is unknown, or so large that something can be mapped
    /// between the ends of the window and the addresses at this distance from them.
    pub(super) fn distance_beside(&self, of: (Number, i64), added: i64) -> Option<i64> {
        let distance = self.near.1.checked_sub(of.1)?.checked_add(added)?;
        let is_beside = distance.unsigned_abs() <= BESIDE_WINDOW;
        (self.near.0 == of.0 && is_beside).then_some(distance)
    }

    /// This value, with the knowledge that it is `base` plus a number.
    pub(super) fn is_sum_of(self, base: &Value, added: i64) -> Self {
        match base.near.1.checked_add(added) {
            Some(sum) => Self {
                near: (base.near.0, sum),
                ..self
            },
            None => self,
        }
    }

    /// Whether the value is below 2^32.
    pub(super) fn is_narrow(&self) -> bool {
        match self.kind {
            Kind::Narrow | Kind::Word | Kind::HighWord => true,
            Kind::Constant(value) => value >> 32 == 0,
            _ => false,
        }
    }

    pub(super) fn is_word(&self) -> bool {
        match self.kind {
            Kind::Word => true,
            Kind::Constant(value) => value >> 16 == 0,
            _ => false,
        }
    }

    /// What is known of the result of an instruction that writes a doubleword of this value.
    pub(super) fn narrowed(&self) -> Kind {
        match self.kind {
            Kind::Word => Kind::Word,
            _ => Kind::Narrow,
        }
    }
}

/// Gives numbers to values.
#[derive(Default)]
pub(super) struct Numbers(Number);

impl Numbers {
    /// A value that differs from all others.
    pub(super) fn new_value(&mut self, kind: Kind) -> Value {
        self.0 += 1;
        Value {
            number: self.0,
            kind,
            near: (self.0, 0),
        }
    }
}

/// What is known between two instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// The value of each host register.
    pub(super) registers: [Value; 16],
    /// The values of the fields [`crate::abi::context_displacements::WORK`].
    pub(super) work: [Value; 3],
    /// The values of the guest registers that live in slots.
    pub(super) slots: [Value; 16],
    /// The value of the field [`crate::abi::context_displacements::CODE_SLIDE`].
    pub(super) code_slide: Value,
    /// Addresses in common parts: each is the value with this number plus this distance.
    pub(super) common: Vec<(Number, i64)>,
    /// The entry whose tag matches the target: its index and its table.
    pub(super) matched: Option<(Number, Table)>,
    /// The entry whose slide is in `code_slide`.
    pub(super) moved: Option<(Number, Table)>,
    /// The exit that the previous instruction has named.
    pub(super) named: Option<usize>,
    /// The change of the privilege level, if R14 is the software TLB of the level that it leads to.
    pub(super) level: Option<LevelChangeKind>,
    /// Whether the guest's vector registers are loaded.
    pub(super) vectors: bool,
}

impl State {
    /// Whether the address `added` bytes from a value lies in a common part or where nothing is
    /// ever mapped.
    pub(super) fn is_near_common(&self, value: &Value, added: i64) -> bool {
        self.common
            .iter()
            .any(|&of| value.distance_beside(of, added).is_some())
    }

    /// A state in which nothing is known.
    pub(super) fn unknown(numbers: &mut Numbers) -> Self {
        Self {
            registers: [(); 16].map(|()| numbers.new_value(Kind::Any)),
            work: [(); 3].map(|()| numbers.new_value(Kind::Any)),
            slots: [(); 16].map(|()| numbers.new_value(Kind::Any)),
            code_slide: numbers.new_value(Kind::Any),
            common: Vec::new(),
            matched: None,
            moved: None,
            named: None,
            level: None,
            vectors: false,
        }
    }

    /// Keeps what is known both here and where `other` holds, for control that comes from either.
    pub(super) fn merge(&mut self, other: &State, numbers: &mut Numbers) {
        let index = self.common_index(other, numbers);
        let here = self.registers.iter_mut().chain(&mut self.work);
        let here = here.chain(&mut self.slots).chain([&mut self.code_slide]);
        let there = other.registers.iter().chain(&other.work);
        let there = there.chain(&other.slots).chain([&other.code_slide]);
        for (value, other) in here.zip(there) {
            if value != other {
                *value = numbers.new_value(Kind::Any);
            }
        }
        self.common.retain(|it| other.common.contains(it));
        let has_moved = [&*self, other].map(|it| it.moved.is_some() && it.moved == it.matched);
        if let Some((index, table)) = index {
            self.registers[R9] = index;
            self.matched = Some((index.number, table));
            self.moved = self.matched.filter(|_| has_moved == [true; 2]);
        } else {
            if self.matched != other.matched {
                self.matched = None;
            }
            if self.moved != other.moved {
                self.moved = None;
            }
        }
        if self.named != other.named {
            self.named = None;
        }
        self.level = self.level.or(other.level);
        self.vectors &= other.vectors;
    }

    /// A new value for R9, if R9 is here and in `other` the index of an entry of the same table
    /// whose tag matches the target, and the two indexes differ.
    fn common_index(&self, other: &State, numbers: &mut Numbers) -> Option<(Value, Table)> {
        let [here, there] = [self, other].map(|state| {
            let (number, table) = state.matched?;
            let index = state.registers[R9];
            (index.number == number && index.kind == Kind::Index).then_some((number, table))
        });
        let ((here, table), (there, other)) = here.zip(there)?;
        let is_other_index = table == other && here != there;
        is_other_index.then(|| (numbers.new_value(Kind::Index), table))
    }

    /// Forgets the values of registers, since the monitor enters guest code here. The monitor loads
    /// the vector registers if they were loaded when guest code was left.
    pub(super) fn forget_values(&mut self, numbers: &mut Numbers) {
        let vectors = self.vectors;
        let level = self.level;
        *self = Self::unknown(numbers);
        self.vectors = vectors;
        self.level = level;
    }
}
