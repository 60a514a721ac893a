//! Line charts and grouped bar charts, with axes, round ticks and a legend.

use super::{Anchor, FAINT, Font, GRID, INK, LABEL, Short, Svg, TITLE, Unit, colour, round_step, text_width};
use std::fmt::Write as _;

const LEFT: f64 = 72.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 64.0;
const PLOT: f64 = 280.0;
const WIDTH: f64 = 1200.0;

/// One line of a line chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// `(x, y)`, x rising. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// Drawn dashed: for what is expected, beside what was measured.
    pub dashed: bool,
}

/// Lines over a common x axis that starts at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// What it shows.
    pub title: String,
    /// What x is.
    pub x_label: String,
    /// What y is.
    pub y_label: String,
    /// How x is written.
    pub x_unit: Unit,
    /// How y is written.
    pub y_unit: Unit,
    /// The lines; a dashed line has the colour of the line before it.
    pub series: Vec<Series>,
}

/// Bars in groups: one group a case, one bar a series, so that neighbours can be compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// What y is.
    pub y_label: String,
    /// How y is written.
    pub y_unit: Unit,
    /// Names of the bars within a group.
    pub series: Vec<String>,
    /// Name and values of each group; a missing or non-finite value leaves its place empty.
    pub groups: Vec<(String, Vec<f64>)>,
}

/// The plot area and its y scale.
struct Plot {
    max: f64,
    step: f64,
    unit: Unit,
}

impl Plot {
    fn new(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let top = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = round_step(if top > 0.0 { top } else { 1.0 }, 5.0);
        // A little air above the highest value, up to the next round number.
        let max = (top * 1.02 / step).ceil().max(1.0) * step;
        // No share is more than 100 %, so an axis to 120 % would only raise questions.
        let max = if unit == Unit::Share && top <= 1.0 { max.min(1.0) } else { max };
        Self { max, step, unit }
    }

    fn y(&self, value: f64) -> f64 {
        TOP + PLOT * (1.0 - value.clamp(0.0, self.max) / self.max)
    }

    fn frame(&self, svg: &mut Svg, title: &str, y_label: &str) {
        svg.text(LEFT, 30.0, TITLE, title);
        svg.text(LEFT, 50.0, LABEL, y_label);
        let font = Font { anchor: Anchor::End, ..LABEL };
        let ticks = (self.max / self.step).round() as usize;
        for tick in 0..=ticks {
            let value = tick as f64 * self.step;
            let y = self.y(value);
            svg.line((LEFT, y), (WIDTH - RIGHT, y), GRID);
            svg.text(LEFT - 8.0, y + 4.0, font, &self.unit.show(value, self.step));
        }
        svg.line((LEFT, TOP + PLOT), (WIDTH - RIGHT, TOP + PLOT), FAINT);
    }
}

impl LineChart {
    /// The chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let plot = Plot::new(points().map(|point| point.1), self.y_unit);
        let right = points().map(|point| point.0).filter(|x| x.is_finite()).fold(0.0, f64::max);
        let right = if right > 0.0 { right } else { 1.0 };
        let x_of = |x: f64| LEFT + x.clamp(0.0, right) / right * (WIDTH - LEFT - RIGHT);
        let mut svg = Svg::new(WIDTH);
        plot.frame(&mut svg, &self.title, &self.y_label);
        let step = round_step(right, 10.0);
        for tick in 0..=(right / step + 1e-9) as usize {
            let value = tick as f64 * step;
            let font = Font { anchor: Anchor::Middle, ..LABEL };
            svg.line((x_of(value), TOP + PLOT), (x_of(value), TOP + PLOT + 5.0), FAINT);
            svg.text(x_of(value), TOP + PLOT + 20.0, font, &self.x_unit.show(value, step));
        }
        let font = Font { anchor: Anchor::Middle, ..LABEL };
        svg.text((LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT + 38.0, font, &self.x_label);
        let mut entries = Vec::new();
        let mut index = 0;
        for (at, series) in self.series.iter().enumerate() {
            if at > 0 && !series.dashed {
                index += 1;
            }
            draw_line(&mut svg, &plot, series, colour(index), x_of);
            let suffix = if series.dashed { " (dashed)" } else { "" };
            entries.push((colour(index), format!("{}{suffix}", series.name)));
        }
        svg.height = svg.legend(LEFT, TOP + PLOT + 54.0, &entries) + 6.0;
        svg.finish(&self.title)
    }
}

fn draw_line(svg: &mut Svg, plot: &Plot, series: &Series, stroke: &str, x_of: impl Fn(f64) -> f64) {
    let mut path = String::new();
    for &(x, y) in series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{},{}", Short(x_of(x)), Short(plot.y(y)));
    }
    let style = if series.dashed {
        "stroke-width=\"1.5\" stroke-dasharray=\"5 4\" opacity=\"0.8\""
    } else {
        "stroke-width=\"2.2\""
    };
    svg.put(format_args!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{stroke}\" stroke-linejoin=\"round\" {style}/>"
    ));
}

impl BarChart {
    /// The chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let plot = Plot::new(self.groups.iter().flat_map(|(_, values)| values.iter().copied()), self.y_unit);
        let mut svg = Svg::new(WIDTH);
        plot.frame(&mut svg, &self.title, &self.y_label);
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        // A few bars must not become walls.
        let bar = (group_width * 0.8 / self.series.len().max(1) as f64).min(64.0);
        for (index, (name, values)) in self.groups.iter().enumerate() {
            let centre = LEFT + (index as f64 + 0.5) * group_width;
            let left = centre - bar * self.series.len() as f64 / 2.0;
            for (at, &value) in values.iter().take(self.series.len()).enumerate() {
                if value.is_finite() {
                    let shown = self.y_unit.show(value, plot.step / 10.0);
                    let x = left + at as f64 * bar;
                    let tip = format!("{name}, {}: {shown}", self.series[at]);
                    let (y, base) = (plot.y(value), TOP + PLOT);
                    svg.rect([x + 1.0, y, (bar - 2.0).max(0.5), base - y], colour(at), &tip);
                    if text_width(&shown, 11.0) < bar + 6.0 {
                        let font = Font { size: 11.0, anchor: Anchor::Middle, fill: INK, ..LABEL };
                        svg.text(x + bar / 2.0, y - 5.0, font, &shown);
                    }
                }
            }
            let font = Font { anchor: Anchor::Middle, fill: INK, ..LABEL };
            svg.text(centre, TOP + PLOT + 20.0, font, &fit(name, group_width));
        }
        let entries: Vec<_> =
            self.series.iter().enumerate().map(|(at, name)| (colour(at), name.clone())).collect();
        svg.height = svg.legend(LEFT, TOP + PLOT + 38.0, &entries) + 6.0;
        svg.finish(&self.title)
    }
}

/// Cuts a name to a width.
fn fit(name: &str, width: f64) -> String {
    if text_width(name, 12.0) <= width {
        return name.to_string();
    }
    let room = (width / (12.0 * 0.62)) as usize;
    let mut cut: String = name.chars().take(room.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_where_its_points_are() {
        let series = Series {
            name: "<s>".into(),
            points: vec![(0.0, 0.0), (2.0, f64::NAN), (4.0, 10.0)],
            dashed: false,
        };
        let chart = LineChart { title: "t".into(), series: vec![series], ..LineChart::default() };
        let svg = chart.svg();
        // 10 with 2 % of air is 12 on a scale of steps of 2: five sixths of the way up.
        let high = TOP + PLOT * (1.0 - 10.0 / 12.0);
        let path = format!("M{},{}L{},{}", LEFT, TOP + PLOT, WIDTH - RIGHT, Short(high));
        assert!(svg.contains(&path), "{path} is not in {svg}");
        assert!(svg.contains("&lt;s&gt;") && !svg.contains("NaN"));
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let chart = BarChart {
            series: vec!["wfq".into(), "eevdf".into()],
            groups: vec![("1 CPU".into(), vec![1.0, f64::INFINITY]), ("a long name & more".into(), vec![])],
            ..BarChart::default()
        };
        let svg = chart.svg();
        let height = Short(PLOT / 1.2);
        assert!(svg.contains(&format!("height=\"{height}\"")), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 2, "one bar and the chart itself");
    }

    #[test]
    fn charts_without_data_have_no_nan() {
        for svg in [LineChart::default().svg(), BarChart::default().svg()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(fit("short", 100.0), "short");
        assert_eq!(fit("a very long name", 60.0), "a very …");
    }
}
