//! What plots share: formats, colours, the font, the error.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::fmt;
use std::path::Path;
use std::sync::Once;

/// Colours that colour-blind readers can tell apart (Okabe and Ito's).
pub(crate) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(60, 60, 60),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// The font's name.
pub(crate) const FONT: &str = "sans-serif";

/// In which format a plot is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlotFormat {
    /// Scalable.
    Svg,
    /// A bitmap.
    Png,
}

impl PlotFormat {
    /// What the file's name ends in; `None` if it is neither.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

/// The plot could not be drawn or written.
#[derive(Debug)]
pub struct PlotError(pub(crate) String);

impl fmt::Display for PlotError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for PlotError {}

/// Text is drawn with a font of our own, so that plots look the same everywhere.
pub(crate) fn provide_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            // Fails only for bytes that are no font.
            let _ = register_font(FONT, style, epaint_default_fonts::HACK_REGULAR);
        }
    });
}

/// What drawing says when it fails, as a text.
pub(crate) fn failed<E>(error: DrawingAreaErrorKind<E>) -> String
where
    E: std::error::Error + Send + Sync,
{
    error.to_string()
}

/// A number at an axis: at most three digits before k, M or G.
pub(crate) fn tick(value: f64) -> String {
    let (divisor, letter) = match value.abs() {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    // Steps of axes are round, so that few places behind the point say all; zeros there say nothing.
    let text = format!("{:.3}", value / divisor);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{letter}")
}

/// Lines of text below each other, with their heights.
pub(crate) fn draw_lines<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    lines: &[(i32, String)],
) -> Result<(), String> {
    let mut top = 14;
    for (height, line) in lines {
        let style = (FONT, *height).into_font().color(&BLACK);
        area.draw(&Text::new(line.as_str(), (24, top), style))
            .map_err(failed)?;
        top += height + 10;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (100.0, "100"),
            (1500.0, "1.5k"),
            (2e7, "20M"),
            (3e9, "3G"),
        ] {
            assert_eq!(tick(value), text);
        }
    }

    #[test]
    fn the_format_follows_from_the_name() {
        assert_eq!(PlotFormat::of(Path::new("a.SVG")), Some(PlotFormat::Svg));
        assert_eq!(PlotFormat::of(Path::new("b.png")), Some(PlotFormat::Png));
        assert_eq!(PlotFormat::of(Path::new("c")), None);
    }
}
