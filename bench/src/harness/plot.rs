//! Line and bar charts as SVG: only the shapes that the figures need, so that no drawing library is
//! linked.

use std::fmt::Write;

/// The spread of values along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero, or from the lowest value if that is below zero.
    Linear,
    /// Decades. Values that are not positive are left out.
    Log,
}

/// A named line (points) of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The data of a chart.
#[derive(Clone, Debug)]
pub enum Data {
    Lines(Vec<Series>),
    /// Groups of bars: the groups' names, then each series with one value per group (NaN = no bar).
    Bars(Vec<String>, Vec<(String, Vec<f64>)>),
}

/// A chart with its axes.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    pub x_scale: Scale,
    pub y_scale: Scale,
    pub data: Data,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Okabe and Ito's palette, which colour-blind readers can tell apart.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000",
];

impl Chart {
    pub fn lines(title: &str, x_label: &str, y_label: &str, series: Vec<Series>) -> Chart {
        Chart {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            data: Data::Lines(series),
        }
    }

    pub fn bars(
        title: &str,
        y_label: &str,
        groups: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    ) -> Chart {
        Chart {
            title: title.to_owned(),
            x_label: String::new(),
            y_label: y_label.to_owned(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            data: Data::Bars(groups, series),
        }
    }

    pub fn scales(mut self, x_scale: Scale, y_scale: Scale) -> Chart {
        (self.x_scale, self.y_scale) = (x_scale, y_scale);
        self
    }

    /// The whole SVG file.
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        text(&mut svg, WIDTH / 2.0, 22.0, "middle", &self.title);
        text(
            &mut svg,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 12.0,
            "middle",
            &self.x_label,
        );
        let (x, y) = (18.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        let _ = writeln!(
            svg,
            "<text transform=\"translate({x:.1},{y:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(&self.y_label)
        );
        match &self.data {
            Data::Lines(series) => self.draw_lines(&mut svg, series),
            Data::Bars(groups, series) => self.draw_bars(&mut svg, groups, series),
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_lines(&self, svg: &mut String, series: &[Series]) {
        let points = || series.iter().flat_map(|s| s.points.iter().copied());
        let x_axis = Axis::new(self.x_scale, points().map(|p| p.0), LEFT, WIDTH - RIGHT);
        let y_axis = Axis::new(self.y_scale, points().map(|p| p.1), HEIGHT - BOTTOM, TOP);
        draw_y_axis(svg, &y_axis);
        for tick in x_axis.ticks() {
            let x = x_axis.place(tick).unwrap_or(LEFT);
            text(svg, x, HEIGHT - BOTTOM + 16.0, "middle", &label(tick));
        }
        for (n, line) in series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let mut path = String::new();
            for (x, y) in &line.points {
                if let (Some(x), Some(y)) = (x_axis.place(*x), y_axis.place(*y)) {
                    let _ = write!(path, "{x:.1},{y:.1} ");
                    if line.points.len() <= 40 {
                        let _ = writeln!(
                            svg,
                            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>"
                        );
                    }
                }
            }
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
                path.trim_end()
            );
            legend(svg, n, colour, &line.name);
        }
    }

    fn draw_bars(&self, svg: &mut String, groups: &[String], series: &[(String, Vec<f64>)]) {
        let values = series.iter().flat_map(|s| s.1.iter().copied());
        let y_axis = Axis::new(self.y_scale, values, HEIGHT - BOTTOM, TOP);
        draw_y_axis(svg, &y_axis);
        let group_width = (WIDTH - RIGHT - LEFT) / groups.len().max(1) as f64;
        let bar_width = group_width * 0.85 / series.len().max(1) as f64;
        for (g, name) in groups.iter().enumerate() {
            let left = LEFT + group_width * g as f64;
            text(
                svg,
                left + group_width / 2.0,
                HEIGHT - BOTTOM + 16.0,
                "middle",
                name,
            );
            for (n, (_, values)) in series.iter().enumerate() {
                let Some(y) = values.get(g).and_then(|value| y_axis.place(*value)) else {
                    continue;
                };
                let (x, height) = (
                    left + group_width * 0.075 + bar_width * n as f64,
                    HEIGHT - BOTTOM - y,
                );
                let colour = COLOURS[n % COLOURS.len()];
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar_width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
                );
            }
        }
        for (n, (name, _)) in series.iter().enumerate() {
            legend(svg, n, COLOURS[n % COLOURS.len()], name);
        }
    }
}

fn draw_y_axis(svg: &mut String, axis: &Axis) {
    let right = WIDTH - RIGHT;
    for tick in axis.ticks() {
        let y = axis.place(tick).unwrap_or(TOP);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>");
        text(svg, LEFT - 6.0, y + 4.0, "end", &label(tick));
    }
    let bottom = HEIGHT - BOTTOM;
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" stroke=\"#333\" fill=\"none\"/>"
    );
}

fn legend(svg: &mut String, n: usize, colour: &str, name: &str) {
    let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 8.0 + 18.0 * n as f64);
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
        y - 10.0
    );
    text(svg, x + 18.0, y, "start", name);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

fn escape(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Maps values to places between two edges of the picture.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let usable = |v: &f64| v.is_finite() && (scale == Scale::Linear || *v > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                low = low.min(0.0);
                high = if high > low { high } else { low + 1.0 };
                let step = step(high - low);
                high = (high / step).ceil() * step;
            }
            Scale::Log => {
                low = 10f64.powf(low.log10().floor());
                high = 10f64.powf(high.log10().ceil());
                high = if high > low { high } else { low * 10.0 };
            }
        }
        Axis {
            scale,
            low,
            high,
            from,
            to,
        }
    }

    /// The place of a value; `None` if the axis cannot show it.
    fn place(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        share
            .is_finite()
            .then_some(self.from + share * (self.to - self.from))
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high - self.low);
                let count = ((self.high - self.low) / step).round() as i32;
                let first = (self.low / step).ceil();
                (0..=count).map(|n| (first + f64::from(n)) * step).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|n| self.low * 10f64.powi(n)).collect()
            }
        }
    }
}

/// A round step that cuts `span` into 4 to 10 parts.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let lead = rough / power;
    let round = if lead < 1.5 {
        1.0
    } else if lead < 3.5 {
        2.0
    } else if lead < 7.5 {
        5.0
    } else {
        10.0
    };
    round * power
}

/// `2.5 M` rather than `2500000`.
fn label(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.6}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_start_at_zero_and_end_on_a_round_number() {
        let axis = Axis::new(Scale::Linear, [3.0, 87.0].into_iter(), 0.0, 100.0);
        assert_eq!((axis.low, axis.high), (0.0, 100.0));
        assert_eq!(axis.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(axis.place(50.0), Some(50.0));
    }

    #[test]
    fn log_axes_cover_whole_decades_and_leave_out_zero() {
        let axis = Axis::new(Scale::Log, [0.0, 0.5, 2000.0].into_iter(), 0.0, 50.0);
        assert_eq!(axis.ticks().len(), 6);
        assert_eq!(axis.place(0.0), None);
        let middle = axis.place(10.0f64).unwrap();
        assert!((middle - 20.0).abs() < 1e-9, "{middle}");
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(label(2_500_000.0), "2.5 M");
        assert_eq!(label(0.25), "0.25");
        assert_eq!(label(100.0), "100");
        assert_eq!(label(20_000.0), "20 k");
        assert_eq!(label(0.0), "0");
    }

    #[test]
    fn names_cannot_break_the_file() {
        let series = vec![Series {
            name: "<a&b>".into(),
            points: vec![(1.0, f64::NAN), (2.0, 5.0)],
        }];
        let svg = Chart::lines("a < b", "x", "y", series).to_svg();
        assert!(svg.contains("&lt;a&amp;b&gt;") && svg.contains("a &lt; b"));
        assert!(!svg.contains("NaN"), "a missing value draws nothing");
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn bars_of_missing_values_are_left_out() {
        let groups = vec!["one".into(), "two".into()];
        let chart = Chart::bars("t", "y", groups, vec![("a".into(), vec![1.0, f64::NAN])]);
        let svg = chart.to_svg();
        // Background, one bar, one legend.
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
    }

    #[test]
    fn an_empty_chart_is_still_a_picture() {
        let svg = Chart::lines("t", "x", "y", vec![])
            .scales(Scale::Log, Scale::Log)
            .to_svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
