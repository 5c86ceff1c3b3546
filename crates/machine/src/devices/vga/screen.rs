//! The content of the display adapter's screen: a picture, or the characters of a text mode.

use super::registers::{attribute, crtc, graphics, sequencer};
use super::{Blocks, Vga, Window};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_memory::GuestMemory;

/// The contents of the screen.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Screen {
    /// There is no adapter, or nothing is displayed.
    #[default]
    Off,
    /// Characters.
    Text(TextScreen),
    /// Pixels.
    Graphics(Size),
}

/// The size of a picture in pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Size {
    /// The number of pixels in a line.
    pub width: usize,
    /// The number of lines.
    pub height: usize,
}

/// The characters of a text mode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TextScreen {
    /// The number of characters in a line.
    pub columns: usize,
    /// The number of lines.
    pub rows: usize,
    /// The codes of the characters, line by line.
    pub characters: Vec<u8>,
    /// The attributes of the characters.
    pub attributes: Vec<u8>,
    /// Column and row of the cursor, if it is visible.
    pub cursor: Option<(usize, usize)>,
    /// Whether bit 7 of an attribute means blinking and not a bright background.
    pub blinks: bool,
}

/// A picture: red, green and blue of each pixel, line by line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture {
    /// The size of the picture.
    pub size: Size,
    /// Three bytes for each pixel.
    pub pixels: Vec<u8>,
}

/// A limit for the largest text screen that registers can describe, which is far larger than any
/// real one.
const MOST_COLUMNS: usize = 256;
const MOST_ROWS: usize = 128;

impl TextScreen {
    /// Returns the lines without spaces at their ends.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.characters.chunks(self.columns.max(1)).map(|line| {
            let line: String = line.iter().copied().map(character).collect();
            line.trim_end().to_owned()
        })
    }
}

/// Returns the character with a code in code page 437, which a PC's fonts have.
pub fn character(code: u8) -> char {
    const LOW: &str = " ☺☻♥♦♣♠•◘○◙♂♀♪♫☼►◄↕‼¶§▬↨↑↓→←∟↔▲▼";
    const HIGH: &str = "⌂ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    match code {
        0x00..0x20 => LOW.chars().nth(code.into()),
        0x20..0x7f => Some(code.into()),
        _ => HIGH.chars().nth(usize::from(code - 0x7f)),
    }
    .unwrap_or(' ')
}

impl Vga {
    /// Returns what is displayed now.
    pub fn screen(&mut self, memory: &GuestMemory) -> Screen {
        self.bring_planes(memory);
        if let Some(mode) = self.dispi.mode() {
            return Screen::Graphics(Size {
                width: mode.width,
                height: mode.height,
            });
        }
        match (self.registers.is_on(), self.registers.is_text()) {
            (false, _) => Screen::Off,
            (true, true) => Screen::Text(self.text()),
            (true, false) => Screen::Graphics(self.graphics_size()),
        }
    }

    /// Copies the contents of the display to the planes, for reading them now.
    fn bring_planes(&mut self, memory: &GuestMemory) {
        if !matches!(self.window, Window::Planes(..)) {
            self.take_contents(memory);
        }
    }

    fn text(&self) -> TextScreen {
        let registers = &self.registers;
        let columns = (usize::from(registers.crtc[crtc::COLUMNS]) + 1).min(MOST_COLUMNS);
        let rows = (registers.lines() / self.character_height()).clamp(1, MOST_ROWS);
        let starts: Vec<_> = (0..rows).map(|row| self.row_start(row)).collect();
        let cells = || {
            let places = starts.iter().flat_map(|start| *start..*start + columns);
            places.map(|place| self.cell(place))
        };
        TextScreen {
            columns,
            rows,
            characters: cells().map(|cell| cell[0]).collect(),
            attributes: cells().map(|cell| cell[1]).collect(),
            cursor: self.cursor(columns, &starts),
            blinks: registers.attribute[attribute::MODE] & 8 != 0,
        }
    }

    fn cell(&self, place: usize) -> [u8; 4] {
        self.planes.cells[place % self.planes.cells.len()]
    }

    /// Returns the cell of the first character of a row.
    fn row_start(&self, row: usize) -> usize {
        self.text_line(row * self.character_height()).cell
    }

    /// Returns the column and the row of the cursor if it is visible in one of the rows that begin
    /// at these cells.
    fn cursor(&self, columns: usize, starts: &[usize]) -> Option<(usize, usize)> {
        const HIDDEN: u8 = 1 << 5;
        let (start, end) = (
            self.registers.crtc[crtc::CURSOR_START],
            self.registers.crtc[crtc::CURSOR_END],
        );
        if start & HIDDEN != 0 || start & 0x1f > end & 0x1f {
            return None;
        }
        let place = self.registers.cursor();
        let is_in = |start: &usize| (*start..*start + columns).contains(&place);
        let row = starts.iter().position(is_in)?;
        Some((place - starts[row], row))
    }

    fn graphics_size(&self) -> Size {
        let registers = &self.registers;
        let characters = usize::from(registers.crtc[crtc::COLUMNS]) + 1;
        let repeats = self.repeated_lines();
        let pixels = if self.is_256_colour() { 4 } else { 8 };
        Size {
            width: characters * pixels,
            height: (registers.lines() / repeats).max(1),
        }
    }

    /// Draws the displayed picture; for a text mode with its font. It returns the last picture as
    /// long as neither registers nor display memory are written.
    pub fn picture(&mut self, memory: &mut GuestMemory) -> Option<Arc<Picture>> {
        let blocks = self.blocks?;
        // Both blocks are asked, because asking also clears their marks.
        let is_text_written = memory.take_block_dirty(blocks.text);
        let is_video_written = memory.take_block_dirty(blocks.video);
        if is_text_written || is_video_written || std::mem::take(&mut self.is_touched) {
            self.is_touched = false;
            self.last_picture = self.draw(memory).map(Arc::new);
        }
        self.last_picture.clone()
    }

    fn draw(&mut self, memory: &GuestMemory) -> Option<Picture> {
        let screen = self.screen(memory);
        let blocks = self.blocks?;
        match screen {
            Screen::Off => None,
            Screen::Text(text) => Some(self.draw_text(&text)),
            Screen::Graphics(size) if self.dispi.is_enabled() => {
                self.draw_extension(size, blocks, memory)
            }
            Screen::Graphics(size) => Some(self.draw_planes(size)),
        }
    }

    /// Returns red, green and blue of an entry of the palette.
    fn colour(&self, index: u8) -> [u8; 3] {
        let index = index & self.registers.pixel_mask;
        let entry = self.registers.palette[usize::from(index)];
        if self.dispi.is_enabled() && self.dispi.has_wide_palette() {
            return entry;
        }
        entry.map(|value| (value & 0x3f) << 2 | (value & 0x3f) >> 4)
    }

    /// Returns red, green and blue of a 4-bit colour, which the attribute controller translates
    /// first.
    fn attribute_colour(&self, four_bits: u8) -> [u8; 3] {
        const FIXED_HIGH: u8 = 1 << 7;
        let select = self.registers.attribute[attribute::COLOUR_SELECT];
        let entry = self.registers.attribute[usize::from(four_bits & 0xf)] & 0x3f;
        let index = match self.registers.attribute[attribute::MODE] & FIXED_HIGH {
            0 => entry | (select & 0xc) << 4,
            _ => entry & 0xf | (select & 0xf) << 4,
        };
        self.colour(index)
    }

    fn draw_text(&self, text: &TextScreen) -> Picture {
        const LINE_GRAPHICS: u8 = 1 << 2;
        let width = self.character_width();
        let size = Size {
            width: text.columns * width,
            height: text.rows * self.character_height(),
        };
        let extends = self.registers.attribute[attribute::MODE] & LINE_GRAPHICS != 0;
        let (font, bright_font) = (self.font(0), self.font(1));
        let cursor = text.cursor.map(|_| self.registers.cursor());
        let mut pixels = Vec::with_capacity(3 * size.width * size.height);
        for y in 0..size.height {
            let line = self.text_line(y);
            let dots = |column: usize| {
                let place = line.cell + column;
                let [code, value, ..] = self.cell(place);
                let base = if value & 8 != 0 { font } else { bright_font };
                let bits = self.cell(base + 32 * usize::from(code) + line.row_scan)[2];
                let is_cursor = cursor == Some(place) && self.cursor_covers(line.row_scan);
                let background = if text.blinks {
                    value >> 4 & 7
                } else {
                    value >> 4
                };
                (0..width).map(move |x| {
                    let set = match x {
                        8 => extends && (0xc0..0xe0).contains(&code) && bits & 1 != 0,
                        _ => bits >> (7 - x) & 1 != 0,
                    };
                    match set || is_cursor {
                        true => value & 0xf,
                        false => background,
                    }
                })
            };
            // A line that is moved to the left begins inside of a character.
            let colours = (0..=text.columns).flat_map(dots);
            for colour in colours.skip(line.panning).take(size.width) {
                pixels.extend(self.attribute_colour(colour));
            }
        }
        Picture { size, pixels }
    }

    /// Whether the cursor covers a line of its character.
    fn cursor_covers(&self, line: usize) -> bool {
        let start = usize::from(self.registers.crtc[crtc::CURSOR_START] & 0x1f);
        let end = usize::from(self.registers.crtc[crtc::CURSOR_END] & 0x1f);
        (start..=end).contains(&line)
    }

    /// Returns the first cell of one of the two fonts. Attribute bit 3 selects between them.
    fn font(&self, which: u8) -> usize {
        let map = self.registers.sequencer[sequencer::CHARACTER_MAP];
        let number = match which {
            0 => map >> 2 & 3 | map >> 3 & 4,
            _ => map & 3 | map >> 2 & 4,
        };
        // The order is 0, 4000h, 8000h, C000h, and then the addresses in between.
        usize::from(number & 3) * 0x4000 + usize::from(number >> 2) * 0x2000
    }

    fn draw_planes(&self, size: Size) -> Picture {
        const TWO_BITS: u8 = 1 << 5;
        let registers = &self.registers;
        let mut pixels = Vec::with_capacity(3 * size.width * size.height);
        for y in 0..size.height {
            let line = self.pixel_line(y);
            let start = line.cell;
            for x in line.panning..line.panning + size.width {
                let colour = if self.is_256_colour() {
                    // Memory is accessed as doublewords in a chained mode, and as words of planes
                    // otherwise.
                    self.colour(self.cell(start + x / 4)[x % 4])
                } else if registers.graphics[graphics::MODE] & TWO_BITS != 0 {
                    let byte = self.cell(start + x / 8)[x / 4 % 2];
                    self.attribute_colour(byte >> (6 - 2 * (x % 4)) & 3)
                } else {
                    let cell = self.cell(start + x / 8);
                    let enabled = registers.attribute[0x12] & 0xf;
                    let bits = (0..4).fold(0, |bits, plane| {
                        bits | (cell[plane] >> (7 - x % 8) & 1) << plane
                    });
                    self.attribute_colour(bits & enabled)
                };
                pixels.extend(colour);
            }
        }
        Picture { size, pixels }
    }

    /// Draws a mode of the frame buffer extension.
    fn draw_extension(&self, size: Size, blocks: Blocks, memory: &GuestMemory) -> Option<Picture> {
        let mode = self.dispi.mode()?;
        if mode.depth == 4 {
            return Some(self.draw_planes(size));
        }
        let bytes = usize::from(mode.depth.div_ceil(8));
        let mut pixels = Vec::with_capacity(3 * size.width * size.height);
        let mut line = vec![0; size.width * bytes];
        for y in 0..size.height {
            line.fill(0);
            let offset = (mode.start + y * mode.pitch) as u64;
            // Lines beyond the end of memory are black.
            let _ = memory.read_block(blocks.video, offset, &mut line);
            for pixel in line.chunks(bytes) {
                pixels.extend(match (mode.depth, pixel) {
                    (15, [low, high]) => {
                        let value = u16::from_le_bytes([*low, *high]);
                        [value >> 10, value >> 5, value].map(|five| scaled(five & 31, 31))
                    }
                    (16, [low, high]) => {
                        let value = u16::from_le_bytes([*low, *high]);
                        [
                            scaled(value >> 11, 31),
                            scaled(value >> 5 & 63, 63),
                            scaled(value & 31, 31),
                        ]
                    }
                    (_, [index]) => self.colour(*index),
                    (_, [blue, green, red, ..]) => [*red, *green, *blue],
                    _ => [0; 3],
                });
            }
        }
        Some(Picture { size, pixels })
    }
}

fn scaled(value: u16, most: u16) -> u8 {
    (value * 255 / most) as u8
}
