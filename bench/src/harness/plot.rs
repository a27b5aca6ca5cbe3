//! Line and bar charts as SVG.

use super::{Doing, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

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

/// A chart with its axes.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    x_label: String,
    y_label: String,
    x_scale: Scale,
    y_scale: Scale,
    /// Names of the groups of bars; empty = lines.
    groups: Vec<String>,
    /// A group's bars stand on each other.
    stacked: bool,
    series: Vec<Series>,
}

/// Okabe and Ito's palette, which colour-blind readers can tell apart.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x66, 0x66, 0x66),
    RGBColor(0x00, 0x00, 0x00),
];
const SIZE: (u32, u32) = (860, 430);
/// Right of the plot, for the legend.
const LEGEND_WIDTH: u32 = 190;
/// Width of all bars of a group; the rest keeps groups apart.
const BARS_WIDTH: f64 = 0.85;
/// Lines of more points have no dots.
const DOTS_MAX: usize = 40;

impl Chart {
    pub fn lines(title: &str, x_label: &str, y_label: &str, series: Vec<Series>) -> Chart {
        Chart {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            groups: Vec::new(),
            stacked: false,
            series,
        }
    }

    /// Groups of bars: each series has one value per group (NaN = no bar).
    pub fn bars(
        title: &str,
        y_label: &str,
        groups: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    ) -> Chart {
        let series = series.into_iter().map(|(name, values)| Series {
            name,
            points: (0..).map(f64::from).zip(values).collect(),
        });
        Chart {
            groups,
            ..Chart::lines(title, "", y_label, series.collect())
        }
    }

    /// One bar per group, of one part per series; the y axis must be linear.
    pub fn stack(
        title: &str,
        y_label: &str,
        groups: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    ) -> Chart {
        Chart {
            stacked: true,
            ..Chart::bars(title, y_label, groups, series)
        }
    }

    /// The values below series `n` in its group; 0 unless they are stacked.
    fn below(&self, n: usize, group: f64) -> f64 {
        let below = if self.stacked { n } else { 0 };
        let points = self.series[..below]
            .iter()
            .flat_map(|series| &series.points);
        let values = points.filter(|(x, y)| *x == group && y.is_finite());
        values.map(|(_, y)| y).sum()
    }

    pub fn scales(mut self, x_scale: Scale, y_scale: Scale) -> Chart {
        (self.x_scale, self.y_scale) = (x_scale, y_scale);
        self
    }

    /// The whole SVG file.
    ///
    /// # Errors
    /// The library cannot draw it.
    pub fn to_svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE))
            .doing(format!("drawing `{}`", self.title))?;
        Ok(svg)
    }

    /// The ends of both axes, as places.
    fn ends(&self) -> ((f64, f64), (f64, f64)) {
        let xs = self.series.iter().flat_map(|series| &series.points);
        let x = match self.groups.len() {
            0 => range(self.x_scale, xs.map(|point| point.0)),
            groups => (0.0, groups as f64),
        };
        let ys = self.series.iter().enumerate().flat_map(|(n, series)| {
            let points = series.points.iter();
            points.map(move |(x, y)| y + self.below(n, *x))
        });
        (x, range(self.y_scale, ys))
    }

    /// The corners of a bar of series `n`, from the axis `y_low` to the place `y`.
    fn bar(&self, n: usize, group: f64, y_low: f64, y: f64) -> [(f64, f64); 2] {
        let (place, side_by_side) = match self.stacked {
            true => (0, 1),
            false => (n, self.series.len()),
        };
        let width = BARS_WIDTH / side_by_side as f64;
        let left = group + (1.0 - BARS_WIDTH) / 2.0 + width * place as f64;
        let below = self.below(n, group);
        [(left, y_low + below), (left + width, y + below)]
    }

    fn draw(&self, backend: SVGBackend<'_>) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let groups = self.groups.len();
        let ((x_low, x_high), (y_low, y_high)) = self.ends();
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(x_low..x_high, y_low..y_high)?;
        let ticks = |low: f64, high: f64, scale| match scale {
            Scale::Linear => 10,
            Scale::Log => (high - low) as usize + 1,
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_labels(if groups > 0 {
                0
            } else {
                ticks(x_low, x_high, self.x_scale)
            })
            .y_labels(ticks(y_low, y_high, self.y_scale))
            .x_label_formatter(&|x| label(self.x_scale, *x))
            .y_label_formatter(&|y| label(self.y_scale, *y))
            .draw()?;
        let middle = Pos::new(HPos::Center, VPos::Top);
        for (n, name) in self.groups.iter().enumerate() {
            let at = chart.backend_coord(&(n as f64 + 0.5, y_low));
            let style = ("sans-serif", 12).into_text_style(&area).pos(middle);
            area.draw(&Text::new(name.clone(), (at.0, at.1 + 5), style))?;
        }
        for (n, series) in self.series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let y = 20 + 18 * n as i32;
            legend.draw(&Rectangle::new([(4, y), (16, y + 12)], colour.filled()))?;
            legend.draw(&Text::new(series.name.clone(), (22, y), ("sans-serif", 12)))?;
            if groups > 0 {
                let values = series.points.iter();
                let values = values.filter_map(|(x, y)| Some((*x, placed(self.y_scale, *y)?)));
                chart.draw_series(values.map(|(group, y)| {
                    Rectangle::new(self.bar(n, group, y_low, y), colour.filled())
                }))?;
                continue;
            }
            let place =
                |(x, y): &(f64, f64)| Some((placed(self.x_scale, *x)?, placed(self.y_scale, *y)?));
            let line: Vec<(f64, f64)> = series.points.iter().filter_map(place).collect();
            if line.len() <= DOTS_MAX {
                let dots = line.iter();
                chart.draw_series(dots.map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        }
        area.present()?;
        Ok(())
    }
}

/// The place of a value on its axis: itself, or its decade; `None` if the axis cannot show it.
fn placed(scale: Scale, value: f64) -> Option<f64> {
    let place = match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
    };
    place.is_finite().then_some(place)
}

/// The ends of an axis, as places.
fn range(scale: Scale, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let places = values.filter_map(|value| placed(scale, value));
    let ends = places.fold(None, |ends, place| {
        let (low, high) = ends.unwrap_or((place, place));
        Some((place.min(low), place.max(high)))
    });
    let (low, high) = ends.unwrap_or((0.0, 1.0));
    let (low, high) = match scale {
        Scale::Linear => (low.min(0.0), high),
        Scale::Log => (low.floor(), high.ceil()),
    };
    (low, if high > low { high } else { low + 1.0 })
}

/// `2.5 M` rather than `2500000`.
fn label(scale: Scale, place: f64) -> String {
    let value = match scale {
        Scale::Linear => place,
        Scale::Log => 10f64.powf(place),
    };
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
    fn axes_start_at_zero_or_cover_whole_decades() {
        let of = |scale, values: &[f64]| range(scale, values.iter().copied());
        assert_eq!(of(Scale::Linear, &[3.0, 87.0, f64::NAN]), (0.0, 87.0));
        assert_eq!(of(Scale::Linear, &[-3.0]), (-3.0, -2.0));
        assert_eq!(of(Scale::Log, &[0.0, 0.5, 2000.0]), (-1.0, 4.0));
    }

    #[test]
    fn labels_are_short() {
        let linear = |value| label(Scale::Linear, value);
        assert_eq!(linear(2_500_000.0), "2.5 M");
        assert_eq!(linear(0.25), "0.25");
        assert_eq!(linear(100.0), "100");
        assert_eq!(label(Scale::Log, 4.0), "10 k");
        assert_eq!(linear(0.0), "0");
    }

    #[test]
    fn names_cannot_break_the_file() {
        let series = vec![Series {
            name: "<a&b>".into(),
            points: vec![(1.0, f64::NAN), (2.0, 5.0)],
        }];
        let svg = Chart::lines("a < b", "x", "y", series).to_svg().unwrap();
        assert!(svg.contains("&lt;a&amp;b&gt;") && svg.contains("a &lt; b"));
        assert!(!svg.contains("NaN"), "a missing value draws nothing");
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn bars_of_missing_values_are_left_out() {
        let groups = vec!["one".into(), "two".into()];
        let chart = Chart::bars("t", "y", groups, vec![("a".into(), vec![1.0, f64::NAN])]);
        let svg = chart.to_svg().unwrap();
        // Background, one bar, one legend.
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(svg.contains("one") && svg.contains("two"));
    }

    #[test]
    fn stacked_parts_stand_on_each_other() {
        let groups = vec!["one".into(), "two".into()];
        let parts = vec![
            ("a".into(), vec![1.0, f64::NAN]),
            ("b".into(), vec![2.0, 5.0]),
        ];
        let chart = Chart::stack("t", "y", groups, parts);
        assert_eq!([chart.below(1, 0.0), chart.below(1, 1.0)], [1.0, 0.0]);
        let svg = chart.to_svg().unwrap();
        // Background, three parts, two legends.
        assert_eq!(svg.matches("<rect").count(), 6, "{svg}");
    }

    #[test]
    fn an_empty_chart_is_still_a_picture() {
        let chart = Chart::lines("t", "x", "y", vec![]).scales(Scale::Log, Scale::Log);
        let svg = chart.to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
