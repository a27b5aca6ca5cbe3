//! Reports of figures: rows, targets and plots in one JSON file, from which `docs/benchmarks.md` is
//! rendered.

use super::Doing;
use super::Result;
use super::machine::{Machine, date_utc};
use super::plot::Chart;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// One row of a table: named cells in the order they were added.
#[derive(Clone, Debug, Default)]
pub struct Row(Vec<(String, Value)>);

/// A JSON object whose members keep their order.
impl Serialize for Row {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, cell)| (name, cell)))
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Row, D::Error> {
        struct Members;
        impl<'de> serde::de::Visitor<'de> for Members {
            type Value = Row;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a row: an object of cells")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut members: A,
            ) -> std::result::Result<Row, A::Error> {
                let mut row = Row::new();
                while let Some(cell) = members.next_entry()? {
                    row.0.push(cell);
                }
                Ok(row)
            }
        }
        from.deserialize_map(Members)
    }
}

impl Row {
    pub fn new() -> Row {
        Row::default()
    }

    pub fn with(mut self, column: &str, cell: impl Into<Value>) -> Row {
        self.0.push((column.to_owned(), cell.into()));
        self
    }

    /// A number rounded to `digits` significant digits; `null` if it is not finite.
    pub fn number(self, column: &str, number: f64, digits: u32) -> Row {
        self.with(column, significant(number, digits))
    }

    pub fn cells(&self) -> &[(String, Value)] {
        &self.0
    }

    pub fn get(&self, column: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(name, _)| name == column)
            .map(|(_, cell)| cell)
    }
}

fn significant(number: f64, digits: u32) -> Value {
    if !number.is_finite() || number == 0.0 {
        return if number == 0.0 {
            Value::from(0)
        } else {
            Value::Null
        };
    }
    let scale = 10f64.powi(digits as i32 - 1 - number.abs().log10().floor() as i32);
    let rounded = (number * scale).round() / scale;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        Value::from(rounded as i64)
    } else {
        Value::from(rounded)
    }
}

/// A table of a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub rows: Vec<Row>,
}

/// A target of the project, and the measured value. `reached: None` = not measured in this run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub target: String,
    pub measured: String,
    pub reached: Option<bool>,
}

/// One figure's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub figure: String,
    pub title: String,
    /// Description of the figure, for a reader who does not know the program.
    pub about: String,
    pub command: String,
    pub date: String,
    pub machine: Map<String, Value>,
    /// Acknowledgement level of every write in it.
    pub level: String,
    pub quick: bool,
    pub notes: Vec<String>,
    pub targets: Vec<Target>,
    pub tables: Vec<Table>,
    /// File names of the plots, beside the JSON file.
    pub plots: Vec<String>,
    #[serde(skip)]
    charts: Vec<Chart>,
}

impl Report {
    pub fn new(figure: &str, title: &str, about: &str, options: &super::Options) -> Report {
        let machine = match serde_json::to_value(Machine::detect()) {
            Ok(Value::Object(facts)) => facts,
            _ => Map::new(),
        };
        Report {
            figure: figure.to_owned(),
            title: title.to_owned(),
            about: about.to_owned(),
            command: options.command.clone(),
            date: date_utc(),
            machine,
            level: "memory".to_owned(),
            quick: options.quick,
            notes: Vec::new(),
            targets: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            charts: Vec::new(),
        }
    }

    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub fn table(&mut self, title: &str, rows: Vec<Row>) {
        let title = title.to_owned();
        self.tables.push(Table { title, rows });
    }

    /// A target of the form "`measured` at least (or at most) `bound`".
    pub fn target(&mut self, target: impl Into<String>, measured: f64, bound: Bound) {
        let reached = match bound {
            Bound::AtLeast(bound) => measured >= bound,
            Bound::AtMost(bound) => measured <= bound,
        };
        self.targets.push(Target {
            target: target.into(),
            measured: match significant(measured, 4) {
                Value::Null => "not measured".to_owned(),
                number => number.to_string(),
            },
            reached: measured.is_finite().then_some(reached),
        });
    }

    /// Adds a plot; `name` distinguishes several of one figure, and may be empty.
    pub fn plot(&mut self, name: &str, chart: &Chart) {
        let dash = if name.is_empty() { "" } else { "-" };
        let file = format!("{}{dash}{name}.svg", self.figure);
        self.plots.push(file);
        self.charts.push(chart.clone());
    }

    /// Writes `FIGURE.json` and the plots into `directory`, which is created if it is missing.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let shown = directory.display();
        std::fs::create_dir_all(directory).doing(format!("creating {shown}"))?;
        for (file, chart) in self.plots.iter().zip(&self.charts) {
            std::fs::write(directory.join(file), chart.to_svg()?)
                .doing(format!("writing {shown}/{file}"))?;
        }
        let file = format!("{}.json", self.figure);
        let json = serde_json::to_string_pretty(self).doing(format!("encoding {file}"))?;
        std::fs::write(directory.join(&file), json + "\n").doing(format!("writing {shown}/{file}"))
    }

    /// Prints the table, notes, targets and the paths of the files to standard output.
    pub fn print(&self) {
        print!("{}", super::render::report_text(self));
    }
}

/// The good side of a bound.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_significant_digits() {
        assert_eq!(significant(18_345_678.0, 3), Value::from(18_300_000));
        assert_eq!(significant(0.012_345, 3), Value::from(0.0123));
        assert_eq!(significant(-1.0, 2), Value::from(-1));
        assert_eq!(significant(0.0, 3), Value::from(0));
        assert_eq!(significant(f64::NAN, 3), Value::Null);
    }

    #[test]
    fn a_report_survives_its_file() {
        let options = super::super::Options::for_tests();
        let mut report = Report::new("test", "A test", "Shows nothing.", &options);
        report.table("rows", vec![Row::new().with("z", 1).number("a", 2.5, 3)]);
        report.target("at least two", 1.0, Bound::AtLeast(2.0));
        report.target("never measured", f64::NAN, Bound::AtMost(2.0));
        let directory = std::env::temp_dir().join(format!("duramen-report-{}", std::process::id()));
        report.save(&directory).unwrap();
        let text = std::fs::read_to_string(directory.join("test.json")).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.tables[0].rows[0].cells()[0].0,
            "z",
            "columns keep their order"
        );
        assert_eq!(read.targets[0].reached, Some(false));
        assert_eq!(read.targets[1].reached, None);
        assert_eq!(read.level, "memory");
    }
}
