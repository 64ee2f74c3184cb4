//! Charts as SVG, drawn twice: for a wide page and for a phone, where scaling a wide one down would
//! leave letters that nobody can read.

mod course;
mod distribution;
mod forest;
mod roofline;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Color, DrawingArea, IntoDrawingArea, IntoTextStyle,
    SVGBackend, ShapeStyle, TextStyle,
};

use super::palette::{GRID, MUTED, Role};

pub(super) use course::course;
pub(super) use distribution::distribution;
pub(super) use forest::{Interval, forest};
pub(super) use roofline::{Point, roofline};

/// A chart could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw a chart: {0}")]
pub struct ChartError(String);

/// What a chart is drawn on.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A chart with linear axes.
type Linear<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Where a chart is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// A screen or a sheet.
    Wide,
    /// A phone.
    Narrow,
}

impl Room {
    fn width(self) -> u32 {
        match self {
            Self::Wide => 860,
            Self::Narrow => 360,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// Labels that fit an axis.
    fn labels(self) -> usize {
        match self {
            Self::Wide => 8,
            Self::Narrow => 4,
        }
    }

    /// A text cut to what fits a line.
    fn fit(self, text: &str) -> String {
        let most = match self {
            Self::Wide => 100,
            Self::Narrow => 44,
        };
        if text.chars().count() <= most {
            return text.to_owned();
        }
        let cut: String = text.chars().take(most - 1).collect();
        cut + "…"
    }
}

/// Size of text: plotters draws it a fifth smaller.
const FONT: u32 = 16;

/// Draws a chart for both rooms. `label` is what a screen reader says in its place.
fn both(
    label: &str,
    height: impl Fn(Room) -> u32,
    draw: impl Fn(Room, &Area<'_>) -> Result<(), ChartError>,
) -> Result<String, ChartError> {
    let mut drawn = String::new();
    for room in [Room::Wide, Room::Narrow] {
        let mut svg = String::new();
        {
            let area =
                SVGBackend::with_string(&mut svg, (room.width(), height(room))).into_drawing_area();
            draw(room, &area)?;
            area.present().map_err(failed)?;
        }
        let attributes = format!(
            "<svg class=\"{}\" role=\"img\" aria-label=\"{}\" ",
            room.class(),
            escape(label)
        );
        drawn += &svg.replacen("<svg ", &attributes, 1);
    }
    Ok(drawn)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

fn text(role: Role, size: u32) -> TextStyle<'static> {
    TextStyle {
        color: role.light.to_backend_color(),
        ..("sans-serif", size).into_text_style(&SIZE)
    }
}

/// Text sizes are absolute, so the size of the parent does not matter.
const SIZE: (u32, u32) = (0, 0);

fn line(role: Role, width: u32) -> ShapeStyle {
    ShapeStyle {
        color: role.light.into(),
        filled: false,
        stroke_width: width,
    }
}

fn filled(role: Role) -> ShapeStyle {
    ShapeStyle {
        color: role.light.into(),
        filled: true,
        stroke_width: 0,
    }
}

/// A chart with a labelled x axis and no y axis: what stands at which height is written beside it.
fn lanes<'a, 'b>(
    room: Room,
    area: &'a Area<'b>,
    (low, high): (f64, f64),
    lanes: f64,
    x_label: &str,
    format: &dyn Fn(&f64) -> String,
) -> Result<Linear<'a, 'b>, ChartError> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(10)
        .margin_right(22)
        .margin_top(4)
        .x_label_area_size(44)
        .build_cartesian_2d(low..high, 0.0..lanes)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .x_labels(room.labels())
        .x_label_formatter(&format)
        .x_desc(x_label)
        .label_style(text(MUTED, FONT))
        .axis_desc_style(text(MUTED, FONT))
        .axis_style(line(GRID, 1))
        .bold_line_style(line(GRID, 1))
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

/// Text at a place of a lane chart, moved by pixels.
fn note(
    chart: &Linear<'_, '_>,
    place: (f64, f64),
    shift: (i32, i32),
    words: &str,
    role: Role,
) -> Result<(), ChartError> {
    let (x, y) = chart.backend_coord(&place);
    let area = chart.plotting_area().strip_coord_spec();
    let (left, top) = area.get_base_pixel();
    area.draw_text(
        words,
        &text(role, FONT),
        (x - left + shift.0, y - top + shift.1),
    )
    .map_err(failed)
}
