//! The page of `duramen top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use std::borrow::Borrow;

use super::Page;
use super::latency::Latency;
use super::sample::{Reading, count, ratio, size};

/// Above this utilization the cleaner's work per byte grows steeply: it is shown in colour.
const HIGH_UTILIZATION: f64 = 0.9;

/// Draws the whole page.
pub(super) fn draw(frame: &mut Frame<'_>, page: &Page) {
    let [head, curve, memory, rest, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Percentage(35),
        Constraint::Length(4),
        Constraint::Min(6),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let reading = page.history.last();
    frame.render_widget(title(page, reading), head);
    let keys = " q quit · p pause · + - interval".dim();
    frame.render_widget(Paragraph::new(keys), foot);
    let Some(reading) = reading else {
        frame.render_widget(
            Paragraph::new("waiting for the first interval …").block(Block::bordered()),
            curve,
        );
        return;
    };
    throughput(frame, curve, page, reading);
    gauges(frame, memory, reading);
    let [figures, latency] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(rest);
    table_of_figures(frame, figures, reading);
    let [now, since_start] =
        Layout::vertical([Constraint::Min(5), Constraint::Length(6)]).areas(latency);
    table_of_latency(
        frame,
        now,
        "latency in the server now, µs",
        "calls/s",
        &reading.latency,
    );
    table_of_latency(
        frame,
        since_start,
        "since its start",
        "calls",
        &reading.latency_since_start,
    );
}

fn title(page: &Page, reading: Option<&Reading>) -> Paragraph<'static> {
    let server = reading
        .map(|reading| reading.server.clone())
        .unwrap_or_default();
    let uptime = reading
        .and_then(|reading| reading.uptime_seconds)
        .map(uptime)
        .unwrap_or_default();
    let mut spans = vec![
        Span::from(" duramen top ").bold().reversed(),
        Span::from(format!(
            " {} · {server} · up {uptime} · every {:.1} s",
            page.address,
            page.interval.as_secs_f64()
        )),
    ];
    if page.paused {
        spans.push(" PAUSED".yellow().bold());
    }
    Paragraph::new(Line::from(spans))
}

fn uptime(seconds: f64) -> String {
    let minutes = seconds as u64 / 60;
    match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
        (0, 0, minutes) => format!("{minutes}m {:02}s", seconds as u64 % 60),
        (0, hours, minutes) => format!("{hours}h {minutes:02}m"),
        (days, hours, _) => format!("{days}d {hours:02}h"),
    }
}

fn throughput(frame: &mut Frame<'_>, area: Rect, page: &Page, reading: &Reading) {
    let width = usize::from(area.width.saturating_sub(2));
    let rates = page
        .history
        .iter()
        .map(|reading| reading.ops_per_second.unwrap_or(0.0) as u64);
    let rates: Vec<u64> = rates
        .skip(page.history.len().saturating_sub(width))
        .collect();
    let most = rates.iter().max().copied().unwrap_or(0);
    let title = format!(
        " {} operations/s · most {} ",
        count(reading.ops_per_second),
        count(Some(most as f64))
    );
    let curve = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(rates)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(curve, area);
}

fn gauges(frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
    let [utilization, memory] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(area);
    let live = format!(
        "{} live of {}",
        size(reading.live_bytes),
        size(reading.live_limit_bytes)
    );
    gauge(
        frame,
        utilization,
        " live data of its limit ",
        reading.utilization,
        live,
    );
    let used = reading
        .memory_bytes
        .zip(reading.memory_limit_bytes)
        .map(|(used, limit)| used / limit);
    let text = format!(
        "{} of {}",
        size(reading.memory_bytes),
        size(reading.memory_limit_bytes)
    );
    gauge(frame, memory, " memory ", used, text);
}

fn gauge(frame: &mut Frame<'_>, area: Rect, title: &'static str, ratio: Option<f64>, text: String) {
    let block = Block::bordered().title(title);
    let Some(ratio) = ratio.filter(|ratio| ratio.is_finite()) else {
        frame.render_widget(Paragraph::new(text).block(block), area);
        return;
    };
    let colour = if ratio >= HIGH_UTILIZATION {
        Color::Yellow
    } else {
        Color::Green
    };
    let gauge = Gauge::default()
        .block(block)
        .gauge_style(Style::new().fg(colour))
        .ratio(ratio.clamp(0.0, 1.0))
        .label(format!("{:.1} % · {text}", ratio * 100.0));
    frame.render_widget(gauge, area);
}

/// Lines of the table of figures: names and values.
type Figures = Vec<(&'static str, String)>;

fn table_of_figures(frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
    let rows = [
        client_figures(reading),
        memory_figures(reading),
        disk_figures(reading),
        flash_figures(reading),
    ];
    let rows = rows.into_iter().flatten();
    let rows = rows.map(|(name, value)| Row::new([name.to_owned(), value]));
    let table = Table::new(rows, [Constraint::Length(30), Constraint::Min(10)])
        .block(Block::bordered().title(" now "));
    frame.render_widget(table, area);
}

fn joined<S: Borrow<str>>(values: &[S]) -> String {
    values.join(" · ")
}

/// A value with its unit, or `-`.
fn with_unit(value: Option<f64>, decimals: usize, unit: &str) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}{unit}"))
}

fn us(value: Option<f64>) -> String {
    with_unit(value, 0, " µs")
}

fn client_figures(reading: &Reading) -> Figures {
    vec![
        ("clients", count(reading.clients)),
        ("keys", count(reading.keys)),
        ("round trip from here", us(reading.round_trip_us)),
        ("hits", ratio(reading.hit_ratio)),
        (
            "expired/s · evicted/s",
            joined(&[
                count(reading.expired_per_second),
                count(reading.evicted_per_second),
            ]),
        ),
        (
            "network in/s · out/s",
            joined(&[
                size(reading.input_bytes_per_second),
                size(reading.output_bytes_per_second),
            ]),
        ),
        ("processor cores", with_unit(reading.cpu_cores, 2, "")),
    ]
}

fn memory_figures(reading: &Reading) -> Figures {
    vec![
        (
            "resident · index",
            joined(&[size(reading.rss_bytes), size(reading.index_bytes)]),
        ),
        ("cleaner busy", ratio(reading.cleaner_busy)),
        (
            "segments open · closed · free",
            joined(&[
                count(reading.segments_open),
                count(reading.segments_closed),
                count(reading.segments_free),
            ]),
        ),
        (
            "cleaner freed/s · moved/s",
            joined(&[
                size(reading.cleaner_freed_bytes_per_second),
                size(reading.cleaner_relocated_bytes_per_second),
            ]),
        ),
        ("cleaner passes/s", count(reading.cleaner_passes_per_second)),
        (
            "writers stalled",
            with_unit(reading.stall_ms_per_second, 1, " ms/s"),
        ),
    ]
}

fn disk_figures(reading: &Reading) -> Figures {
    let (level, disk) = (reading.level.as_deref(), reading.disk.as_deref());
    vec![
        (
            "level · disk",
            joined(&[level.unwrap_or("-"), disk.unwrap_or("-")]),
        ),
        (
            "commits/s · sync p50 · p99",
            joined(&[
                count(reading.commits_per_second),
                us(reading.sync_p50_us),
                us(reading.sync_p99_us),
            ]),
        ),
        (
            "written to disk/s · undurable",
            joined(&[
                size(reading.disk_bytes_per_second),
                size(reading.undurable_bytes),
            ]),
        ),
    ]
}

/// Figures of the second tier, if there is one.
fn flash_figures(reading: &Reading) -> Figures {
    if reading.flash_bytes.is_none() {
        return Vec::new();
    }
    let demoted = count(reading.flash_demoted_per_second) + " segments";
    vec![
        (
            "flash live · size",
            joined(&[size(reading.flash_live_bytes), size(reading.flash_bytes)]),
        ),
        (
            "flash fetched/s · promoted hits/s",
            joined(&[
                count(reading.flash_fetches_per_second),
                count(reading.flash_promoted_hits_per_second),
            ]),
        ),
        (
            "flash demoted/s · promoted",
            joined(&[demoted, size(reading.flash_promoted_bytes)]),
        ),
    ]
}

fn table_of_latency(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    calls: &str,
    latency: &[Latency],
) {
    let rows = latency.iter().map(|one| {
        let us = |value: f64| format!("{value:.1}");
        Row::new([
            one.command.clone(),
            count(one.calls),
            us(one.p50_us),
            us(one.p99_us),
            us(one.p999_us),
        ])
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let header = Row::new(["command", calls, "p50", "p99", "p99.9"])
        .style(Style::new().add_modifier(Modifier::BOLD));
    let block = Block::bordered().title(format!(" {title} "));
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn drawn(width: u16, height: u16, history: Vec<Reading>) -> String {
        let page = Page {
            address: "127.0.0.1:6379".to_owned(),
            interval: Duration::from_secs(1),
            paused: false,
            history,
        };
        let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
        let Ok(_) = terminal.draw(|frame| draw(frame, &page));
        terminal.backend().to_string()
    }

    fn reading() -> Reading {
        let latency = Latency {
            command: "get".to_owned(),
            calls: Some(1e6),
            p50_us: 1.5,
            p99_us: 3.0,
            p999_us: 9.0,
        };
        Reading {
            ops_per_second: Some(1_234_567.0),
            utilization: Some(0.83),
            memory_bytes: Some(512.0 * 1024.0 * 1024.0),
            memory_limit_bytes: Some(1024.0 * 1024.0 * 1024.0),
            latency_since_start: vec![latency.clone()],
            latency: vec![latency],
            ..Reading::default()
        }
    }

    #[test]
    fn the_page_shows_the_figures() {
        let page = drawn(120, 40, vec![reading()]);
        for text in [
            "1,234,567 operations/s",
            "83.0 %",
            "512.0M of 1.0G",
            "p99.9",
            "1,000,000",
            "q quit",
        ] {
            assert!(page.contains(text), "{text} is missing in\n{page}");
        }
    }

    #[test]
    fn any_size_of_terminal_and_no_reading_are_fine() {
        for (width, height) in [(1, 1), (3, 50), (80, 24), (200, 5)] {
            assert!(!drawn(width, height, vec![]).is_empty());
            assert!(!drawn(width, height, vec![reading(), reading()]).is_empty());
        }
        assert!(drawn(80, 24, vec![]).contains("waiting for the first interval"));
    }
}
