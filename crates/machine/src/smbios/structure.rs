//! One structure of SMBIOS: a formatted part, and the texts that it refers to by their numbers.

/// A structure in the making.
pub struct Structure {
    formatted: Vec<u8>,
    texts: Vec<u8>,
    /// The number of texts.
    count: u8,
}

impl Structure {
    /// Begins a structure of a type with this handle.
    pub fn new(kind: u8, handle: u16) -> Self {
        let [low, high] = handle.to_le_bytes();
        Self {
            formatted: vec![kind, 0, low, high],
            texts: Vec::new(),
            count: 0,
        }
    }

    /// Adds a text and returns its number; an empty text has the number 0.
    pub fn name(&mut self, text: &str) -> u8 {
        if text.is_empty() {
            return 0;
        }
        self.texts.extend(text.bytes().filter(|byte| *byte != 0));
        self.texts.push(0);
        self.count = self.count.saturating_add(1);
        self.count
    }

    /// Adds the number of a text.
    pub fn text(mut self, text: &str) -> Self {
        let number = self.name(text);
        self.bytes(&[number])
    }

    /// Adds the numbers of several texts.
    pub fn texts(self, texts: &[&str]) -> Self {
        texts.iter().fold(self, |it, text| it.text(text))
    }

    /// Adds bytes to the fields that every structure of its type has.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.formatted.extend(bytes);
        self
    }

    /// Adds a value of 16 bits.
    pub fn word(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds a value of 32 bits.
    pub fn double(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds a value of 64 bits.
    pub fn quad(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Returns the bytes of the structure. Its texts end with an empty one.
    pub fn finished(self) -> Vec<u8> {
        let mut all = self.formatted;
        all[1] = all.len() as u8;
        all.extend(&self.texts);
        if self.texts.is_empty() {
            all.push(0);
        }
        all.push(0);
        all
    }
}
