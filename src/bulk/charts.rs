//! Charts over time as SVG, drawn by hand: lines and stacked columns. Colours are classes of the page's style.

use std::fmt::Write;

/// Width and height of the drawing, and the room for labels at its left and bottom.
const SIZE: (f64, f64) = (860.0, 220.0);
const ROOM: (f64, f64) = (56.0, 26.0);

/// One chart: values by column, over a span of seconds.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// Of the whole width.
    pub(super) seconds: f64,
    pub(super) unit: &'a str,
    pub(super) series: Vec<Series<'a>>,
    pub(super) stacked: bool,
    /// A line across, with its name.
    pub(super) mark: Option<(f64, String)>,
}

/// Values of one colour.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    pub(super) values: Vec<Option<f64>>,
}

impl Chart<'_> {
    /// As a figure.
    pub(super) fn draw(&self) -> String {
        let mut svg = String::new();
        let top = nice(self.most());
        let _ = write!(
            svg,
            r#"<figure><figcaption>{}</figcaption><svg viewBox="0 0 {} {}" role="img" aria-label="{}">"#,
            self.title, SIZE.0, SIZE.1, self.title
        );
        self.grid(&mut svg, top);
        match self.stacked {
            true => self.columns(&mut svg, top),
            false => self.series.iter().for_each(|series| line(&mut svg, series, top)),
        }
        if let Some((value, name)) = &self.mark {
            let y = y(*value, top);
            let _ = write!(svg, r#"<path class="mark" d="M{} {y:.1}H{}"/>"#, ROOM.0, SIZE.0);
            let _ = write!(svg, r#"<text class="marked" x="{}" y="{:.1}">{name}</text>"#, SIZE.0 - 4.0, y - 5.0);
        }
        svg.push_str("</svg>");
        self.legend(&mut svg);
        svg.push_str("</figure>");
        svg
    }

    fn most(&self) -> f64 {
        let columns = self.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let at = |column: usize| self.series.iter().filter_map(move |series| *series.values.get(column)?);
        let tops =
            (0..columns).map(|column| if self.stacked { at(column).sum() } else { at(column).fold(0.0, f64::max) });
        tops.fold(self.mark.as_ref().map_or(0.0, |(mark, _)| mark * 1.1), f64::max)
    }

    fn grid(&self, svg: &mut String, top: f64) {
        for step in 0..=4 {
            let value = top * f64::from(step) / 4.0;
            let y = y(value, top);
            let _ = write!(svg, r#"<path class="grid" d="M{} {y:.1}H{}"/>"#, ROOM.0, SIZE.0);
            let _ =
                write!(svg, r#"<text x="{}" y="{:.1}" class="end">{}</text>"#, ROOM.0 - 6.0, y + 4.0, number(value));
        }
        for step in 0..=6 {
            let share = f64::from(step) / 6.0;
            let x = ROOM.0 + (SIZE.0 - ROOM.0) * share;
            let class = match step {
                0 => "start",
                6 => "end",
                _ => "middle",
            };
            let text = clock(self.seconds * share);
            let _ = write!(svg, r#"<text x="{x:.1}" y="{}" class="{class}">{text}</text>"#, SIZE.1 - 8.0);
        }
        let _ = write!(svg, r#"<text x="{}" y="11" class="start unit">{}</text>"#, ROOM.0 + 4.0, self.unit);
    }

    fn columns(&self, svg: &mut String, top: f64) {
        let columns = self.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let mut below = vec![0.0; columns];
        for series in &self.series {
            let mut path = String::new();
            for (column, value) in series.values.iter().enumerate() {
                let value = value.unwrap_or(0.0);
                if value > 0.0 {
                    let (x, width) = (x(column, columns), (SIZE.0 - ROOM.0) / float(columns));
                    let (foot, head) = (y(below[column], top), y(below[column] + value, top));
                    let width = (width - 0.4).max(0.6);
                    let _ = write!(path, "M{x:.1} {foot:.1}V{head:.1}h{width:.2}V{foot:.1}z");
                    below[column] += value;
                }
            }
            if !path.is_empty() {
                let _ = write!(svg, r#"<path class="fill {}" d="{path}"/>"#, series.class);
            }
        }
    }

    fn legend(&self, html: &mut String) {
        html.push_str("<p class=\"legend\">");
        for series in self.series.iter().filter(|series| series.values.iter().flatten().any(|value| *value > 0.0)) {
            let _ = write!(html, r#"<span><i class="{}"></i>{}</span>"#, series.class, series.name);
        }
        html.push_str("</p>");
    }
}

fn line(svg: &mut String, series: &Series<'_>, top: f64) {
    let columns = series.values.len();
    let (mut path, mut drawing) = (String::new(), false);
    for (column, value) in series.values.iter().enumerate() {
        let Some(value) = value else {
            drawing = false;
            continue;
        };
        let x = x(column, columns) + (SIZE.0 - ROOM.0) / float(columns) / 2.0;
        let _ = write!(path, "{}{x:.1} {:.1}", if drawing { "L" } else { "M" }, y(*value, top));
        // A lone point is seen as a dot.
        if !drawing {
            path.push_str("h0.1");
        }
        drawing = true;
    }
    if !path.is_empty() {
        let _ = write!(svg, r#"<path class="line {}" d="{path}"/>"#, series.class);
    }
}

fn x(column: usize, columns: usize) -> f64 {
    ROOM.0 + (SIZE.0 - ROOM.0) * float(column) / float(columns)
}

fn y(value: f64, top: f64) -> f64 {
    let height = SIZE.1 - ROOM.1 - 16.0;
    16.0 + height * (1.0 - value / top)
}

/// The next of 1, 2, 5, 10 … that is not below.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let scale = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    steps.iter().map(|step| step * scale).find(|top| *top >= value).unwrap_or(10.0 * scale)
}

/// `1,200` as `1.2k`.
pub(super) fn number(value: f64) -> String {
    let (value, suffix) = match value {
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// `90` seconds as `1:30`.
fn clock(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{} s", number(seconds)),
        seconds if seconds < 3600.0 => format!("{}:{:02.0}", (seconds / 60.0).floor(), (seconds % 60.0).floor()),
        seconds => format!("{}:{:02.0} h", (seconds / 3600.0).floor(), (seconds % 3600.0 / 60.0).floor()),
    }
}

fn float(number: usize) -> f64 {
    super::stats::float(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (0.9, 1.0), (3.0, 4.0), (101.0, 200.0), (7.5e6, 8e6)] {
            assert!((nice(value) - top).abs() < 1e-9, "{value}");
        }
        assert_eq!([number(0.0), number(0.25), number(1200.0), number(12_000.0)], ["0", "0.25", "1200", "12k"]);
        assert_eq!([clock(4.5), clock(90.0), clock(7260.0)], ["4.5 s", "1:30", "2:01 h"]);
    }
}
