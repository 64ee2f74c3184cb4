//! How far each arm is from what the machine can do (Williams, Waterman and Patterson, CACM 2009).

use plotters::prelude::{ChartBuilder, Circle, IntoLogRange, LineSeries, TriangleMarker};

use super::super::palette::{A, B, GRID, INK, MUTED};
use super::{ChartError, FONT, Room, both, failed, filled, line, text};
use crate::record::{Limits, Work};
use crate::report::format_count;

/// One workload.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Point {
    /// Its name.
    pub(in super::super) name: String,
    /// What it has to do.
    pub(in super::super) work: Work,
    /// What the machine could do with it.
    pub(in super::super) limits: Limits,
    /// Seconds of A.
    pub(in super::super) a: Option<f64>,
    /// Seconds of B.
    pub(in super::super) b: Option<f64>,
}

impl Point {
    fn intensity(&self) -> f64 {
        self.work.flops / self.work.bytes
    }
}

/// The chart; empty without points.
pub(in super::super) fn roofline(points: &[Point]) -> Result<String, ChartError> {
    let usable: Vec<&Point> = points
        .iter()
        .filter(|point| point.work.flops > 0.0 && point.work.bytes > 0.0)
        .collect();
    if usable.is_empty() {
        return Ok(String::new());
    }
    let share = |point: &Point, seconds: Option<f64>| {
        seconds.map_or_else(
            || "not timed".to_owned(),
            |seconds| {
                format!(
                    "{:.0}%",
                    point.work.least_seconds(&point.limits) / seconds * 100.0
                )
            },
        )
    };
    let label = usable
        .iter()
        .map(|point| {
            format!(
                "{}: A reaches {}, B {} of the limit",
                point.name,
                share(point, point.a),
                share(point, point.b)
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    both(
        &format!("Roofline. {label}"),
        |room| if room == Room::Wide { 380 } else { 320 },
        |room, area| draw(room, area, &usable),
    )
}

fn draw(room: Room, area: &super::Area<'_>, points: &[&Point]) -> Result<(), ChartError> {
    let ridge = |limits: &Limits| limits.flops_per_s / limits.bytes_per_s;
    let places = || {
        points
            .iter()
            .flat_map(|point| [point.intensity(), ridge(&point.limits)])
    };
    let left = places().fold(f64::INFINITY, f64::min) / 3.0;
    let right = places().fold(0.0, f64::max) * 3.0;
    let ceiling =
        |limits: &Limits, intensity: f64| (intensity * limits.bytes_per_s).min(limits.flops_per_s);
    let peak = points
        .iter()
        .map(|point| point.limits.flops_per_s)
        .fold(0.0, f64::max);
    let floor = points
        .iter()
        .map(|point| ceiling(&point.limits, left))
        .fold(f64::INFINITY, f64::min);
    let rates: Vec<(f64, f64, bool)> = points
        .iter()
        .flat_map(|point| {
            let at = |seconds: Option<f64>, of_a| {
                seconds.map(|seconds| (point.intensity(), point.work.flops / seconds, of_a))
            };
            [at(point.a, true), at(point.b, false)]
        })
        .flatten()
        .collect();
    let lowest = rates.iter().map(|(_, rate, _)| *rate).fold(floor, f64::min);
    let highest = rates.iter().map(|(_, rate, _)| *rate).fold(peak, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_left(4)
        .margin_right(22)
        .margin_top(8)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d(
            (left..right).log_scale(),
            (lowest / 2.0..highest * 2.0).log_scale(),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(room.labels())
        .y_labels(6)
        .x_label_formatter(&|value| crate::report::format_ratio(*value))
        .y_label_formatter(&|value| format!("{}FLOP/s", short(*value)))
        .x_desc("operations a byte")
        .label_style(text(MUTED, FONT))
        .axis_desc_style(text(MUTED, FONT))
        .axis_style(line(GRID, 1))
        .bold_line_style(line(GRID, 1))
        .draw()
        .map_err(failed)?;
    // One roof for each set of limits; rows of one machine often share theirs.
    let mut drawn: Vec<&Limits> = Vec::new();
    for limits in points.iter().map(|point| &point.limits) {
        if drawn.contains(&limits) {
            continue;
        }
        drawn.push(limits);
        let corners = [left, ridge(limits), right].map(|place| (place, ceiling(limits, place)));
        chart
            .draw_series(LineSeries::new(corners, line(INK, 1)))
            .map_err(failed)?;
    }
    let of = |wanted: bool| {
        rates
            .iter()
            .filter(move |(_, _, of_a)| *of_a == wanted)
            .map(|(intensity, rate, _)| (*intensity, *rate))
    };
    chart
        .draw_series(of(true).map(|place| Circle::new(place, 5, filled(A))))
        .map_err(failed)?;
    chart
        .draw_series(of(false).map(|place| TriangleMarker::new(place, 6, filled(B))))
        .map_err(failed)?;
    Ok(())
}

fn short(value: f64) -> String {
    let text = format_count(value);
    let (number, prefix) = text.split_once(' ').unwrap_or((&text, ""));
    let number: f64 = number.parse().unwrap_or(value);
    format!("{number} {prefix}")
}
