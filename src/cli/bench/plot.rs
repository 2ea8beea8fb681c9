//! Draws the measurements: one panel per quantity, one line per model.

use super::report::{Report, Row};

const WIDTH: f64 = 640.0;
const PANEL: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Colours that most colour-blind people can tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555"];
const LINE: f64 = 18.0;

/// A plot of one quantity over another.
struct Panel {
    title: &'static str,
    across: &'static str,
    /// Whether the horizontal axis is logarithmic, with steps that double.
    doubles: bool,
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Panel {
    fn new(title: &'static str, across: &'static str, doubles: bool) -> Self {
        Self { title, across, doubles, lines: Vec::new() }
    }

    fn add(&mut self, name: &str, point: (f64, f64)) {
        match self.lines.iter_mut().find(|(known, _)| known == name) {
            Some((_, points)) => points.push(point),
            None => self.lines.push((name.to_owned(), vec![point])),
        }
    }

    fn height(&self) -> f64 {
        PANEL + LINE * self.lines.len() as f64
    }

    /// The horizontal position of a value, from 0 to 1.
    fn across(&self, x: f64) -> f64 {
        let scaled = |x: f64| if self.doubles { x.max(1.0).log2() } else { x };
        let all = || self.lines.iter().flat_map(|(_, points)| points).map(|point| scaled(point.0));
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let least = if self.doubles { least } else { least.min(0.0) };
        if most > least { (scaled(x) - least) / (most - least) } else { 0.5 }
    }

    fn draw(&self, top: f64) -> String {
        let most = self.lines.iter().flat_map(|(_, points)| points).fold(0.0, |most: f64, point| most.max(point.1));
        let step = nice_step(most / 5.0);
        let most = (most / step).ceil().max(1.0) * step;
        let x = |value: f64| LEFT + self.across(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| top + PANEL - BOTTOM - value / most * (PANEL - TOP - BOTTOM);
        let mut svg = format!("<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n", top + 22.0, self.title);
        for i in 0..=(most / step).round() as u32 {
            let value = f64::from(i) * step;
            let (at, right) = (y(value), WIDTH - RIGHT);
            svg += &format!("<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n");
            svg += &format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n", LEFT - 6.0, at + 4.0, number(value));
        }
        let mut marks: Vec<f64> = self.lines.iter().flat_map(|(_, points)| points).map(|point| point.0).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let mut last = f64::NEG_INFINITY;
        for mark in marks {
            // Labels must not overlap.
            if x(mark) - last >= 36.0 {
                last = x(mark);
                let at = y(0.0) + 18.0;
                svg += &format!("<text x=\"{last:.1}\" y=\"{at:.1}\" text-anchor=\"middle\">{}</text>\n", number(mark));
            }
        }
        let middle = LEFT.midpoint(WIDTH - RIGHT);
        svg += &format!("<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n", y(0.0) + 38.0, self.across);
        for (i, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let mut points = points.clone();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let path: Vec<String> = points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
            svg += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n", path.join(" "));
            for point in &points {
                let (x, y, value) = (x(point.0), y(point.1), number(point.1));
                svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{value}</title></circle>\n");
            }
            let at = top + PANEL + LINE * i as f64;
            svg += &format!("<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\n", at - 6.0);
            svg += &format!("<text x=\"{}\" y=\"{at:.1}\">{}</text>\n", LEFT + 20.0, escaped(name));
        }
        svg
    }
}

/// Draws the reports as an SVG file.
pub fn svg(reports: &[Report]) -> String {
    let (mut top, mut body) = (0.0, String::new());
    for panel in panels(reports) {
        body += &panel.draw(top);
        top += panel.height();
    }
    let device = reports.first().map_or("", |report| report.device.as_str());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>penstock bench on {}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\" />\n{body}</svg>\n",
        escaped(device),
        height = top + 10.0,
    )
}

fn panels(reports: &[Report]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = match reports.first().map(|report| report.mode) {
        Some("mixed") => vec![
            Panel::new("output tokens per second", "requests at once", true),
            Panel::new("time to the first token, p99 [ms]", "requests at once", true),
            Panel::new("time between tokens, p99 [ms]", "requests at once", true),
        ],
        Some("context") => vec![Panel::new("decode step [ms]", "tokens of context", false)],
        _ => vec![
            Panel::new("decode tokens per second", "sequences at once", true),
            Panel::new("decode step [ms]", "sequences at once", true),
        ],
    };
    for report in reports {
        for row in &report.rows {
            let (name, across, values) = match row {
                Row::Mixed(r) => {
                    let (first, between) = (r.first_token_milliseconds.p99, r.between_tokens_milliseconds.p99);
                    (report.name.clone(), r.at_once, vec![r.output_tokens_per_second, first, between])
                }
                Row::Steps(r) => match r.context {
                    Some(context) => (format!("{}, batch {}", report.name, r.batch), context, vec![r.decode_step_milliseconds]),
                    None => (report.name.clone(), r.batch, vec![r.decode_tokens_per_second, r.decode_step_milliseconds]),
                },
            };
            for (panel, value) in panels.iter_mut().zip(values) {
                panel.add(&name, (f64::from(across), value));
            }
        }
    }
    panels
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn nice_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// Formats a number with at most four significant digits.
fn number(value: f64) -> String {
    let digits = if value >= 100.0 || value == value.round() {
        0
    } else if value >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.digits$}")
}

fn escaped(text: &str) -> String {
    let clean = outside::in_line(text);
    clean.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!([0.7, 1.0, 1.1, 3.0, 7.0, 240.0].map(nice_step), [1.0, 1.0, 2.0, 5.0, 10.0, 500.0]);
        assert_eq!([0.0, f64::NAN].map(nice_step), [1.0, 1.0]);
        assert_eq!([0.0, 0.25, 12.34, 1234.5].map(number), ["0", "0.250", "12.3", "1234"].map(str::to_owned));
    }

    #[test]
    fn a_panel_places_its_points_within_its_frame() {
        let mut panel = Panel::new("t", "x", true);
        [(1.0, 10.0), (8.0, 40.0), (64.0, 20.0)].into_iter().for_each(|point| panel.add("<a & b>", point));
        assert_eq!([1.0, 8.0, 64.0].map(|x| panel.across(x)), [0.0, 0.5, 1.0]);
        let svg = panel.draw(0.0);
        assert!(svg.contains("&lt;a &amp; b&gt;") && !svg.contains("<a &"), "{svg}");
        assert!(svg.contains("<polyline points=\"70.0,") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let mut one = Panel::new("t", "x", false);
        one.add("a", (0.0, 0.0));
        assert!(!one.draw(0.0).contains("NaN"));
    }
}
