//! How the times moved over a run: drift is seen here, and whether both arms moved together.

use plotters::prelude::{ChartBuilder, LineSeries};

use super::super::palette::{A, B, GRID, MUTED};
use super::{ChartError, FONT, Room, both, failed, line, text};
use crate::report::format_seconds;
use crate::statistics::{median, quantile_of_sorted};

/// Points of a line: each is the median of its part of the run.
const PARTS: usize = 80;

/// The chart of a workload; empty where there are too few samples for a line.
pub(in super::super) fn course(workload: &str, a: &[f64], b: &[f64]) -> Result<String, ChartError> {
    let lines = [(A, medians(a)), (B, medians(b))];
    let mut all: Vec<f64> = lines
        .iter()
        .flat_map(|(_, points)| points)
        .map(|(_, y)| *y)
        .collect();
    all.sort_unstable_by(f64::total_cmp);
    let at = |q| quantile_of_sorted(&all, q).unwrap_or_default();
    let (low, high) = (at(0.0), at(1.0));
    if lines.iter().any(|(_, points)| points.len() < 4) || high <= 0.0 {
        return Ok(String::new());
    }
    let margin = ((high - low) * 0.1).max(low * 0.01);
    both(
        &format!(
            "Times of {workload} over the run, as medians of {} parts, between {} and {}",
            lines[0].1.len(),
            format_seconds(low),
            format_seconds(high)
        ),
        |_| 190,
        |room, area| draw(room, area, &lines, (low - margin, high + margin)),
    )
}

fn draw(
    room: Room,
    area: &super::Area<'_>,
    lines: &[(super::Role, Vec<(f64, f64)>); 2],
    (low, high): (f64, f64),
) -> Result<(), ChartError> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(4)
        .margin_right(22)
        .margin_top(8)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(0.0..1.0, low..high)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .x_labels(room.labels())
        .y_labels(4)
        .x_label_formatter(&|part| format!("{:.0}%", part * 100.0))
        .y_label_formatter(&|seconds| format_seconds(*seconds))
        .x_desc("of the run")
        .label_style(text(MUTED, FONT))
        .axis_desc_style(text(MUTED, FONT))
        .axis_style(line(GRID, 1))
        .bold_line_style(line(GRID, 1))
        .draw()
        .map_err(failed)?;
    for (role, points) in lines {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), line(*role, 2)))
            .map_err(failed)?;
    }
    Ok(())
}

fn medians(samples: &[f64]) -> Vec<(f64, f64)> {
    let size = samples.len().div_ceil(PARTS).max(1);
    let parts = samples.len().div_ceil(size);
    samples
        .chunks(size)
        .enumerate()
        .filter_map(|(part, times)| {
            let place = (part as f64 + 0.5) / parts as f64;
            Some((place, median(&mut times.to_vec())?))
        })
        .collect()
}
