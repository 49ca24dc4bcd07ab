//! Bar charts as SVG: text and rectangles, in colours that follow the reader's light or dark mode.

use std::fmt::Write as _;

/// One bar; nothing where nothing was measured.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: Option<f64>,
    /// What stands at its end.
    pub(super) text: String,
    /// A mark on its scale, such as what is aimed at.
    pub(super) mark: Option<f64>,
}

/// How long a bar is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// From 1, or less where a value is less, by powers of ten.
    Log,
}

const WIDTH: f64 = 860.0;
const LABEL: f64 = 400.0;
const BARS: f64 = 340.0;
const ROW: f64 = 26.0;
const TOP: f64 = 48.0;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The picture of some bars.
pub(super) fn draw(title: &str, scale: Scale, bars: &[Bar]) -> String {
    let values = || bars.iter().flat_map(|bar| [bar.value, bar.mark]).flatten();
    let most = values().fold(1.0_f64, f64::max);
    let least = values().fold(1.0_f64, f64::min).max(1e-3);
    let place = |value: f64| match scale {
        Scale::Linear => value / most,
        Scale::Log => {
            let (low, high) = (least.log10().floor(), most.log10().ceil().max(1.0));
            (value.max(least).log10() - low) / (high - low)
        }
    };
    let height = TOP + ROW * bars.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>{title}</title>\n<style>\ntext {{ fill: #1f2328; }}\nrect {{ fill: #2f6f9f; \
         }}\nline {{ stroke: #b3541e; stroke-width: 2; }}\n@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3; }} \
         rect {{ fill: #6cb6ff; }} }}\n</style>\n<text x=\"10\" y=\"24\" font-size=\"16\">{title}</text>\n",
        title = escaped(title)
    );
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let text_y = y + 14.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{}</text>",
            LABEL - 10.0,
            escaped(&bar.label)
        );
        let end = bar.value.map_or(0.0, |value| BARS * place(value).clamp(0.0, 1.0));
        if bar.value.is_some() {
            let width = end.max(1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LABEL:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\"/>"
            );
        }
        if let (Some(mark), Some(_)) = (bar.mark, bar.value) {
            let x = LABEL + BARS * place(mark).clamp(0.0, 1.0);
            let (above, below) = (y - 2.0, y + 20.0);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{above:.1}\" x2=\"{x:.1}\" y2=\"{below:.1}\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text_y:.1}\">{}</text>",
            LABEL + end + 8.0,
            escaped(&bar.text)
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: Option<f64>) -> Bar {
        Bar {
            label: "a < b".into(),
            value,
            text: "some".into(),
            mark: Some(10.0),
        }
    }

    #[test]
    fn what_was_not_measured_has_no_bar() {
        let svg = draw("of & all", Scale::Log, &[bar(Some(100.0)), bar(None)]);
        assert_eq!(svg.matches("<rect ").count(), 1);
        assert_eq!(svg.matches("<line ").count(), 1);
        assert!(svg.contains("a &lt; b") && svg.contains("of &amp; all"));
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let width = |scale, value| {
            let svg = draw("t", scale, &[bar(Some(value)), bar(Some(1000.0))]);
            let (_, rest) = svg.split_once("width=\"").unwrap();
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!((width(Scale::Linear, 500.0) - BARS / 2.0).abs() < 0.1);
        assert!((width(Scale::Log, 10.0) - BARS / 3.0).abs() < 0.1);
    }
}
