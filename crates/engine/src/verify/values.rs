//! What the verifier knows of registers: where the value of each comes from, as far as that decides
//! whether an access or a jump is allowed.
//!
//! Values have numbers: two registers with the same number hold the same 64 bits.

use crate::abi::level_change::LevelChangeKind;
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;

/// The register that holds the index of a table's entry.
const R9: usize = 9;

/// Number of a value.
pub(super) type Number = u32;

/// The table in which an indirect branch looks its target up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    /// At this displacement from the start of the link tables.
    At(i32),
    /// The one that goes with a change of the privilege level.
    Level(LevelChangeKind),
}

/// What is known of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Any value: nothing is known of it.
    Any,
    /// It is below 2^32.
    Narrow,
    /// It is below 2^16.
    Word,
    /// A word times 65536.
    HighWord,
    /// The sum of a narrow value and a high word.
    FarPointer,
    /// It is this.
    Constant(u64),
    /// The value `of` plus a number.
    Sum {
        of: Number,
        added: i64,
        narrow: bool,
    },
    /// The number of the page that holds the linear address `of`, which is `end.0` plus
    /// `end.1`; `signed`: as the long software TLB numbers pages.
    Page {
        of: Number,
        end: Option<(Number, i64)>,
        signed: bool,
        /// The address is the value of this number plus so much.
        near: (Number, i64),
    },
    /// The number of the software TLB's slot for an access at `of`.
    Slot { of: Number, size: u32, signed: bool },
    /// The index in the root of the long software TLB for the address `of`, which is `near.0`
    /// plus so much.
    Part { of: Number, near: (Number, i64) },
    /// The pointer that was read there, to the table of slots.
    Root { of: Number },
    /// What a slot holds: host address minus linear address `of`, or zero unless `hit`.
    Delta {
        of: Number,
        size: u32,
        write: bool,
        hit: bool,
    },
    /// What the table of shadow windows holds for the part of a linear address: the value of
    /// this number plus so much.
    WindowDelta { of: (Number, i64) },
    /// What there is for a view of a guest that is not in IA-32e mode.
    NarrowDelta,
    /// What it holds for this part.
    WindowDeltaOfPart(i64),
    /// The host address of so many bytes of guest memory.
    Checked { size: u32, write: bool },
    /// Twice a word: the index of an entry in the table of far transfers.
    FarIndex,
    /// The number of an entry in a table of indirect branches.
    IndexBits,
    /// Four times that.
    Index,
    /// The delta that goes with the target of the entry at this index of a table.
    CodeDelta { index: Number, table: Table },
    /// The negative of that.
    NegatedCodeDelta { index: Number, table: Table },
    /// The sum of that and the current delta, whose value had the number `in_force`.
    CodeDeltaSum {
        index: Number,
        table: Table,
        in_force: Number,
    },
    /// Where the table of a change of the privilege level begins.
    LevelTable(LevelChangeKind),
    /// The index of an entry in that, from the start of all tables.
    LevelIndex(LevelChangeKind),
    /// What the tag of such an entry is the negative of, but for the target.
    LevelTag(LevelChangeKind),
    /// The same with the target.
    LevelSum(LevelChangeKind),
    /// The tag of the entry at `index` in a table, plus a constant and so many targets.
    Tag {
        index: Number,
        table: Table,
        constant: u64,
        targets: u8,
    },
    /// The host address of this offset in the block.
    Address(u64),
    /// Zero if the guest's vector registers are loaded.
    VectorsOff,
}

/// A value: its number, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) number: Number,
    pub(super) kind: Kind,
    /// It is the value of this number plus so much.
    pub(super) near: (Number, i64),
}

impl Value {
    /// How far it is from what a window's delta was looked up for, if that is known and nothing
    /// but what is never mapped lies between the ends of the window and what is so far from
    /// either.
    pub(super) fn distance_beside(&self, of: (Number, i64), added: i64) -> Option<i64> {
        let distance = self.near.1.checked_sub(of.1)?.checked_add(added)?;
        let is_beside = distance.unsigned_abs() <= BESIDE_WINDOW;
        (self.near.0 == of.0 && is_beside).then_some(distance)
    }

    /// The same value, known to be `base` plus a number.
    pub(super) fn is_sum_of(self, base: &Value, added: i64) -> Self {
        match base.near.1.checked_add(added) {
            Some(sum) => Self {
                near: (base.near.0, sum),
                ..self
            },
            None => self,
        }
    }

    /// It is below 2^32.
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

    /// What an instruction that writes a doubleword of this value leaves.
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
    /// A value that is like no other.
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
    /// Of each host register.
    pub(super) registers: [Value; 16],
    /// Of the fields [`crate::abi::at::WORK`].
    pub(super) work: [Value; 3],
    /// Of the guest registers that live in slots.
    pub(super) slots: [Value; 16],
    /// Of the field [`crate::abi::at::CODE_DELTA`].
    pub(super) code_delta: Value,
    /// The value of each of these numbers plus so much is an address in a common part.
    pub(super) common: Vec<(Number, i64)>,
    /// The entry whose tag is the target's: its index and its table.
    pub(super) matched: Option<(Number, Table)>,
    /// The entry whose delta is in force.
    pub(super) moved: Option<(Number, Table)>,
    /// The instruction before has named this exit.
    pub(super) named: Option<usize>,
    /// R14 is the software TLB of the level that this change leads to.
    pub(super) level: Option<LevelChangeKind>,
    /// The guest's vector registers are loaded.
    pub(super) vectors: bool,
}

impl State {
    /// Whether so many bytes beside a value lie in a common part or where nothing is ever mapped.
    pub(super) fn is_near_common(&self, value: &Value, added: i64) -> bool {
        self.common
            .iter()
            .any(|&of| value.distance_beside(of, added).is_some())
    }

    /// Nothing is known.
    pub(super) fn unknown(numbers: &mut Numbers) -> Self {
        Self {
            registers: [(); 16].map(|()| numbers.new_value(Kind::Any)),
            work: [(); 3].map(|()| numbers.new_value(Kind::Any)),
            slots: [(); 16].map(|()| numbers.new_value(Kind::Any)),
            code_delta: numbers.new_value(Kind::Any),
            common: Vec::new(),
            matched: None,
            moved: None,
            named: None,
            level: None,
            vectors: false,
        }
    }

    /// What is known where control comes from here or from where `other` holds.
    pub(super) fn merge(&mut self, other: &State, numbers: &mut Numbers) {
        let index = self.common_index(other, numbers);
        let here = self.registers.iter_mut().chain(&mut self.work);
        let here = here.chain(&mut self.slots).chain([&mut self.code_delta]);
        let there = other.registers.iter().chain(&other.work);
        let there = there.chain(&other.slots).chain([&other.code_delta]);
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

    /// The value of R9, if here and in `other` it is the index of an entry of the same table, and
    /// the tag of that entry is the target's.
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

    /// The monitor enters guest code here: what is in registers may be anything. It loads the
    /// vector registers if they were loaded when it was entered.
    pub(super) fn forget_values(&mut self, numbers: &mut Numbers) {
        let vectors = self.vectors;
        let level = self.level;
        *self = Self::unknown(numbers);
        self.vectors = vectors;
        self.level = level;
    }
}
