//! Writes SVG pictures: one file, no scripts or web fonts, readable on light and dark pages.

use std::fmt::{Display, Write};

/// Width of every picture in pixels: a README shows it without scaling.
pub(crate) const WIDTH: f64 = 800.0;

/// Style of all pictures. A picture has its own background, because an image knows the reader's colour scheme but not the
/// page around it.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-size:13px;fill:#1f2328}
.ground{fill:#fff;stroke:#d1d9e0}
.title{font-size:20px;font-weight:600}
.panel{font-size:14px;font-weight:600}
.strong{font-weight:600}
.quiet{fill:#59636e}
.small{font-size:12px}
.plain{font-weight:400}
.command{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;font-size:10.5px;fill:#59636e}
.halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.grid{stroke:#e6eaef}
.axis{stroke:#818b98}
.lead{stroke:#818b98;stroke-dasharray:2 3;fill:none}
.load{fill:#e8833a}
.load-line{stroke:#e8833a;stroke-width:2;fill:none}
.load-band{fill:#e8833a;fill-opacity:.28}
.load-text{fill:#b3541e}
.good{fill:#0969da}
.good-line{stroke:#0969da;stroke-width:2;fill:none;stroke-linejoin:round}
.good-band{fill:#0969da;fill-opacity:.1}
.good-text{fill:#0969da}
.down{fill:#818b98;fill-opacity:.16}
.limit{stroke:#1f2328;stroke-dasharray:6 4;fill:none}
@media(prefers-color-scheme:dark){
text{fill:#f0f6fc}
.ground{fill:#0d1117;stroke:#3d444d}
.quiet,.command{fill:#9198a1}
.halo{stroke:#0d1117}
.grid{stroke:#232a33}
.axis,.lead{stroke:#656c76}
.load{fill:#f0883e}
.load-line{stroke:#f0883e}
.load-band{fill:#f0883e}
.load-text{fill:#f0a36b}
.good{fill:#58a6ff}
.good-line{stroke:#58a6ff}
.good-band{fill:#58a6ff;fill-opacity:.16}
.good-text{fill:#79b8ff}
.down{fill:#9198a1;fill-opacity:.18}
.limit{stroke:#f0f6fc}
}
";

/// Horizontal anchor of a text.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Picture under construction. Coordinates are in pixels from the upper left corner.
#[derive(Debug)]
pub(crate) struct Picture {
    height: f64,
    body: String,
}

impl Picture {
    pub(crate) fn new(height: f64) -> Self {
        Picture { height, body: String::new() }
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}"); // writing into a String cannot fail
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let text = escape(&text.to_string());
        self.element(format_args!(
            r#"<text x="{}" y="{}"{anchor} class="{class}">{text}</text>"#,
            Px(x),
            Px(y)
        ));
    }

    /// Adds lines of text from `y` on, `step` apart.
    pub(crate) fn lines(&mut self, (x, mut y): (f64, f64), step: f64, class: &str, lines: &[String]) {
        for line in lines {
            self.text((x, y), Anchor::Start, class, line);
            y += step;
        }
    }

    /// Adds a bold text with a smaller note.
    pub(crate) fn text_with_note(
        &mut self,
        (x, y): (f64, f64),
        class: &str,
        text: &str,
        note: &str,
        note_class: &str,
    ) {
        let (x, y, text, note) = (Px(x), Px(y), escape(text), escape(note));
        self.element(format_args!(
            r#"<text x="{x}" y="{y}" class="strong {class}">{text} <tspan class="small plain {note_class}">{note}</tspan></text>"#,
        ));
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), radius: f64, class: &str) {
        let round = if radius > 0.0 { format!(r#" rx="{}""#, Px(radius)) } else { String::new() };
        self.element(format_args!(
            r#"<rect x="{}" y="{}" width="{}" height="{}"{round} class="{class}"/>"#,
            Px(x),
            Px(y),
            Px(width.max(0.0)),
            Px(height.max(0.0))
        ));
    }

    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.element(format_args!(
            r#"<line x1="{}" y1="{}" x2="{}" y2="{}" class="{class}"/>"#,
            Px(x1),
            Px(y1),
            Px(x2),
            Px(y2)
        ));
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), radius: f64, class: &str) {
        self.element(format_args!(
            r#"<circle cx="{}" cy="{}" r="{}" class="{class}"/>"#,
            Px(x),
            Px(y),
            Px(radius)
        ));
    }

    /// Adds a line through the points; closed to an area if `closed`.
    pub(crate) fn path(&mut self, points: impl IntoIterator<Item = (f64, f64)>, closed: bool, class: &str) {
        let mut data = String::new();
        for (x, y) in points {
            let command = if data.is_empty() { 'M' } else { 'L' };
            let _ = write!(data, "{command}{} {}", Px(x), Px(y));
        }
        let end = if closed { "Z" } else { "" };
        self.element(format_args!(r#"<path d="{data}{end}" class="{class}"/>"#));
    }

    /// Adds bars on one base line as one shape: `(left, width, height)`.
    pub(crate) fn bars(&mut self, base: f64, bars: impl IntoIterator<Item = (f64, f64, f64)>, class: &str) {
        let mut data = String::new();
        for (left, width, height) in bars {
            let (left, base, width, height) = (Px(left), Px(base), Px(width), Px(height));
            let _ = write!(data, "M{left} {base}v-{height}h{width}v{height}z");
        }
        if !data.is_empty() {
            self.element(format_args!(r#"<path d="{data}" class="{class}"/>"#));
        }
    }

    /// Completes the picture with title, description, background, and the command that draws it.
    ///
    /// The command is metadata and not a comment, where XML forbids `--`.
    pub(crate) fn finish(self, title: &str, description: &str, command: &str) -> String {
        let (title, description, command) = (escape(title), escape(description), escape(command));
        let (width, height) = (Px(WIDTH), Px(self.height));
        let (inner_width, inner_height) = (Px(WIDTH - 1.0), Px(self.height - 1.0));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{description}</desc>
<metadata>{command}</metadata>
<style>
{STYLE}</style>
<rect x=".5" y=".5" width="{inner_width}" height="{inner_height}" rx="8" class="ground"/>
{}</svg>
"#,
            self.body
        )
    }
}

/// Coordinate with at most two decimals, to keep the file small.
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rounded = (self.0 * 100.0).round() / 100.0;
        write!(f, "{}", if rounded == 0.0 { 0.0 } else { rounded })
    }
}

/// Estimates the width of a text generously, because fonts differ.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// A number of lines as a factor of a height.
#[allow(clippy::cast_precision_loss)] // a few lines
pub(crate) fn count(lines: usize) -> f64 {
    lines as f64
}

/// Wraps text into as few lines as possible of at most this width, without a very short last line.
pub(crate) fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let fit = |width| fill(text.split(' ').map(str::to_owned), size, width);
    let mut best = fit(width);
    for share in 1..10 {
        let long_enough = |line: &String| text_width(line, size) > width * 0.4;
        let narrower = fit(width * (1.0 - f64::from(share) * 0.05));
        if best.last().is_none_or(long_enough) || narrower.len() > best.len() {
            break;
        }
        best = narrower;
    }
    best
}

/// Wraps a command between its flags; a flag stays with its value.
pub(crate) fn wrap_command(command: &str, size: f64, width: f64) -> Vec<String> {
    let mut words = command.split(" --");
    let first = words.next().map(str::to_owned);
    fill(first.into_iter().chain(words.map(|word| format!("--{word}"))), size, width)
}

fn fill(words: impl Iterator<Item = String>, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(&word, size) + size * 0.6 <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Escapes XML text or an attribute; replaces characters that XML does not allow.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut picture = Picture::new(100.0);
        picture.text((1.0, 2.0), Anchor::End, "strong", "<script>\"'&\u{1}");
        let svg = picture.finish("a < b", "]]>", "redrive --x '<'");
        assert!(svg.contains("&lt;script&gt;&quot;&#39;&amp;\u{fffd}</text>"), "{svg}");
        assert!(svg.contains("<title id=\"title\">a &lt; b</title>"));
        assert!(!svg.contains("<script") && !svg.contains("<!--"));
    }

    #[test]
    fn coordinates_are_short_and_never_negative_zero() {
        assert_eq!(Px(1.0 / 3.0).to_string(), "0.33");
        assert_eq!(Px(-0.001).to_string(), "0");
        assert_eq!(Px(12.0).to_string(), "12");
    }

    #[test]
    fn wrapping_keeps_every_word() {
        assert_eq!(wrap("one two three four", 10.0, 96.0), ["one two", "three four"]);
        assert_eq!(wrap("one two three four five", 10.0, 96.0), ["one two three", "four five"]);
        let lines = wrap_command("redrive x --a 1 --b 2", 10.0, 90.0);
        assert_eq!(lines, ["redrive x --a 1", "--b 2"]);
    }
}
