//! Access to registers by their names.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{Attributes, CpuState, Flags, Segment, Selector};

/// A number: in JSON's notation, or a string such as "0x1f".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Number(pub u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Number;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number of 64 bits, such as 31 or \"0x1f\"")
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                let digits = text.strip_prefix("0x");
                digits
                    .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                    .map(Number)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A segment register: only its selector, with the hidden part following from it or from the mode,
/// or all of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SegmentValue {
    /// In real mode and V86 mode the base is 16 times the selector; in other modes the segment is
    /// flat.
    Selector(Number),
    /// The selector and the hidden part.
    Whole(WholeSegment),
}

/// A segment register with its hidden part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeSegment {
    selector: Number,
    base: Number,
    /// The limit in bytes.
    limit: Number,
    /// Bits 40 to 55 of a descriptor; those of the limit are zero.
    attributes: Number,
}

/// The register GDTR or IDTR.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    base: Number,
    limit: Number,
}

/// Converts a value, or reports that it does not fit its register.
fn fit<T: TryFrom<u64>>(name: &str, value: Number) -> Result<T, String> {
    T::try_from(value.0).map_err(|_| format!("{name}: {:#x} has too many bits", value.0))
}

impl SegmentValue {
    /// The register with this value. `like` is the register in the mode of the line.
    fn segment(&self, name: &str, like: &Segment, is_real: bool) -> Result<Segment, String> {
        match self {
            Self::Selector(selector) => {
                let selector = fit(name, *selector)?;
                Ok(match is_real {
                    true => Segment::real_mode(selector, like.attributes.dpl()),
                    false => Segment {
                        selector: Selector(selector),
                        ..*like
                    },
                })
            }
            Self::Whole(whole) => Ok(Segment {
                selector: Selector(fit(name, whole.selector)?),
                base: whole.base.0,
                limit: fit(name, whole.limit)?,
                attributes: Attributes::from_bits_retain(fit(name, whole.attributes)?),
            }),
        }
    }

    /// A segment whose hidden part follows from its selector is written as the selector.
    fn of(segment: &Segment, is_real: bool) -> Self {
        let selector = segment.selector.0;
        let plain = Segment::real_mode(selector, segment.attributes.dpl());
        match is_real && *segment == plain {
            true => Self::Selector(Number(selector.into())),
            false => Self::Whole(WholeSegment {
                selector: Number(selector.into()),
                base: Number(segment.base),
                limit: Number(segment.limit.into()),
                attributes: Number(segment.attributes.bits().into()),
            }),
        }
    }
}

impl Table {
    fn register(&self, name: &str) -> Result<TableRegister, String> {
        Ok(TableRegister {
            base: self.base.0,
            limit: fit(name, self.limit)?,
        })
    }

    fn of(register: TableRegister) -> Self {
        Self {
            base: Number(register.base),
            limit: Number(register.limit.into()),
        }
    }
}

/// Defines the registers in a line: from a list of those that are only a number, with their other
/// names and their places, and of the segment registers.
macro_rules! registers {
    ($($name:ident [$($alias:literal)*] ($($place:tt)+))* ; $($segment:ident $number:literal)*) => {
        /// The registers in a line: all of them, or some.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "each name is the manual's")]
        pub struct Registers {
            $(
                #[serde(skip_serializing_if = "Option::is_none" $(, alias = $alias)*)]
                pub $name: Option<Number>,
            )*
            #[serde(skip_serializing_if = "Option::is_none", alias = "eflags", alias = "flags")]
            pub rflags: Option<Number>,
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $segment: Option<SegmentValue>,
            )*
            #[serde(skip_serializing_if = "Option::is_none")]
            pub ldtr: Option<SegmentValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub tr: Option<SegmentValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub gdtr: Option<Table>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub idtr: Option<Table>,
        }

        impl Registers {
            /// Sets these registers of a processor.
            ///
            /// # Errors
            ///
            /// A value does not fit its register.
            pub fn put_into(&self, state: &mut CpuState) -> Result<(), String> {
                $( self.$name.into_iter().for_each(|value| state.$($place)+ = value.0); )*
                if let Some(value) = self.rflags {
                    state.set_flags(Flags::from_bits_retain(value.0) | state.flags() & Flags::VM);
                }
                let is_real = state.has_real_mode_segments();
                $(
                    if let Some(value) = &self.$segment {
                        let like = state.segments[$number];
                        let segment = value.segment(stringify!($segment), &like, is_real)?;
                        state.segments[$number] = segment;
                    }
                )*
                if let Some(value) = &self.ldtr {
                    state.ldtr = value.segment("ldtr", &state.ldtr, false)?;
                }
                if let Some(value) = &self.tr {
                    state.tr = value.segment("tr", &state.tr, false)?;
                }
                if let Some(value) = &self.gdtr {
                    state.gdtr = value.register("gdtr")?;
                }
                if let Some(value) = &self.idtr {
                    state.idtr = value.register("idtr")?;
                }
                Ok(())
            }

            /// All registers of a processor.
            pub fn of(state: &CpuState) -> Self {
                let is_real = state.has_real_mode_segments();
                Self {
                    $( $name: Some(Number(state.$($place)+)), )*
                    rflags: Some(Number(state.flags().image())),
                    $( $segment: Some(SegmentValue::of(&state.segments[$number], is_real)), )*
                    ldtr: Some(SegmentValue::of(&state.ldtr, false)),
                    tr: Some(SegmentValue::of(&state.tr, false)),
                    gdtr: Some(Table::of(state.gdtr)),
                    idtr: Some(Table::of(state.idtr)),
                }
            }
        }
    };
}

registers! {
    rax ["eax" "ax"] (gpr[0])
    rcx ["ecx" "cx"] (gpr[1])
    rdx ["edx" "dx"] (gpr[2])
    rbx ["ebx" "bx"] (gpr[3])
    rsp ["esp" "sp"] (gpr[4])
    rbp ["ebp" "bp"] (gpr[5])
    rsi ["esi" "si"] (gpr[6])
    rdi ["edi" "di"] (gpr[7])
    r8 [] (gpr[8])
    r9 [] (gpr[9])
    r10 [] (gpr[10])
    r11 [] (gpr[11])
    r12 [] (gpr[12])
    r13 [] (gpr[13])
    r14 [] (gpr[14])
    r15 [] (gpr[15])
    rip ["eip" "ip"] (rip)
    cr0 [] (cr0)
    cr2 [] (cr2)
    cr3 [] (cr3)
    cr4 [] (cr4)
    efer [] (efer)
    dr0 [] (dr[0])
    dr1 [] (dr[1])
    dr2 [] (dr[2])
    dr3 [] (dr[3])
    dr6 [] (dr[6])
    dr7 [] (dr[7]);
    es 0
    cs 1
    ss 2
    ds 3
    fs 4
    gs 5
}
