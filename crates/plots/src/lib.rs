//! The common part of plots: formats, colours, the font, the error. All are drawn as SVG; a PNG is
//! rendered from that SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Once};
use tollgate_host_facts::file_words::writing;

/// Colours that colour-blind readers can distinguish (Okabe and Ito's).
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(60, 60, 60),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// Pixels of a PNG for each unit of the SVG, so that small text is clear on any screen.
const PIXELS: f32 = 1.5;
/// The name of the font.
pub const FONT: &str = "sans-serif";

/// The format of a plot's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlotFormat {
    /// Scalable vector graphics.
    Svg,
    /// A bitmap in PNG format.
    Png,
}

impl PlotFormat {
    /// The format that the file's extension selects; `None` for other extensions.
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
pub struct PlotError(pub String);

impl fmt::Display for PlotError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for PlotError {}

/// A colour for each of many objects, the same wherever an object occurs. After the first seven
/// there are darker ones, then lighter ones.
pub fn colour(index: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    let each = |change: fn(u8) -> u8| RGBColor(change(red), change(green), change(blue));
    match index / COLOURS.len() % 3 {
        0 => each(|part| part),
        1 => each(|part| part / 2),
        _ => each(|part| 128 + part / 2),
    }
}

/// The colour with this index in SVG's notation.
pub fn colour_name(index: usize) -> String {
    let RGBColor(red, green, blue) = colour(index);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Draws a plot of this size and writes it to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    path: &Path,
    format: PlotFormat,
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String>,
) -> Result<(), PlotError> {
    svg(size, draw)
        .and_then(|svg| write_svg(&svg, path, format))
        .map_err(|error| PlotError(format!("{}: {error}", path.display())))
}

/// Draws a plot of this size as SVG.
///
/// # Errors
/// What could not be drawn.
pub fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String>,
) -> Result<String, String> {
    provide_font();
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area())?;
    Ok(svg)
}

/// Writes a picture that is already SVG.
///
/// # Errors
///
/// What is wrong, without the file's name.
pub fn write_svg(svg: &str, path: &Path, format: PlotFormat) -> Result<(), String> {
    let bytes = match format {
        PlotFormat::Svg => svg.as_bytes().to_vec(),
        PlotFormat::Png => render(svg)?,
    };
    std::fs::write(path, bytes).map_err(|error| writing(&error))
}

/// Renders this SVG as a PNG.
fn render(svg: &str) -> Result<Vec<u8>, String> {
    let mut options = Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(epaint_default_fonts::HACK_REGULAR.to_vec());
    fonts.set_sans_serif_family("Hack");
    fonts.set_monospace_family("Hack");
    let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let pixels = |length: f32| (length * PIXELS).ceil() as u32;
    let size = tree.size();
    let mut pixmap = Pixmap::new(pixels(size.width()), pixels(size.height()))
        .ok_or("the picture is too large")?;
    let scale = Transform::from_scale(PIXELS, PIXELS);
    resvg::render(&tree, scale, &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| error.to_string())
}

/// Text is measured with a font that is part of the program, so that plots look the same
/// everywhere.
fn provide_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            // This fails only for bytes that are not a font.
            let _ = register_font(FONT, style, epaint_default_fonts::HACK_REGULAR);
        }
    });
}

/// Converts an error of drawing to text.
pub fn failed<E>(error: DrawingAreaErrorKind<E>) -> String
where
    E: std::error::Error + Send + Sync,
{
    error.to_string()
}

/// A number at an axis: at most three digits before k, M or G.
pub fn tick(value: f64) -> String {
    let (divisor, letter) = match value.abs() {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    // Steps of axes are round numbers, so a few decimal places suffice; trailing zeros are omitted.
    let text = format!("{:.3}", value / divisor);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{letter}")
}

/// The margin in pixels on each side of a line of text.
const MARGIN: u32 = 24;
/// The minimum height of a line of text.
const LEAST_HEIGHT: i32 = 8;

/// Draws lines of text below each other, with these heights. A line that is too long is made
/// smaller.
pub fn draw_lines<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    lines: &[(i32, String)],
) -> Result<(), String> {
    let room = area.dim_in_pixel().0.saturating_sub(2 * MARGIN);
    let mut top = 14;
    for (height, line) in lines {
        let height = height_that_fits(area, line, *height, room)?;
        let style = (FONT, height).into_font().color(&BLACK);
        area.draw(&Text::new(line.as_str(), (MARGIN as i32, top), style))
            .map_err(failed)?;
        top += height + 10;
    }
    Ok(())
}

/// The largest font height, at most `height`, at which the line is no wider than `room` pixels.
/// It is never less than [`LEAST_HEIGHT`].
fn height_that_fits<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    line: &str,
    height: i32,
    room: u32,
) -> Result<i32, String> {
    let width = |height: i32| {
        let style = (FONT, height).into_font().color(&BLACK);
        let size = area.estimate_text_size(line, &style);
        size.map(|(width, _)| width).map_err(failed)
    };
    let mut fits = height;
    while fits > LEAST_HEIGHT && width(fits)? > room {
        fits -= 1;
    }
    Ok(fits)
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
    fn a_line_that_is_too_long_is_made_smaller() {
        provide_font();
        let mut picture = String::new();
        let area = SVGBackend::with_string(&mut picture, (400, 100)).into_drawing_area();
        let height = |line: &str| height_that_fits(&area, line, 20, 352).unwrap();
        assert_eq!(height("short"), 20);
        let line = "long pieces of the monitor's work: done to the end";
        let smaller = height(line);
        assert!((LEAST_HEIGHT..20).contains(&smaller), "{smaller}");
        assert_eq!(height(&line.repeat(9)), LEAST_HEIGHT);
    }

    #[test]
    fn many_things_have_different_colours() {
        let colours: Vec<_> = (0..21)
            .map(colour)
            .map(|RGBColor(r, g, b)| (r, g, b))
            .collect();
        for (index, one) in colours.iter().enumerate() {
            assert!(!colours[..index].contains(one), "{index}");
        }
    }

    #[test]
    fn a_png_shows_the_text_of_the_svg() {
        let svg = |text| {
            format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='30'>\
                 <text x='5' y='20' font-family='sans-serif' font-size='16'>{text}</text></svg>"
            )
        };
        let with = render(&svg("Text")).unwrap();
        let without = render(&svg("")).unwrap();
        assert!(with.starts_with(b"\x89PNG") && with.len() > without.len() + 200);
        assert!(render("<svg").is_err());
    }

    #[test]
    fn the_format_follows_from_the_name() {
        assert_eq!(PlotFormat::of(Path::new("a.SVG")), Some(PlotFormat::Svg));
        assert_eq!(PlotFormat::of(Path::new("b.png")), Some(PlotFormat::Png));
        assert_eq!(PlotFormat::of(Path::new("c")), None);
    }
}
